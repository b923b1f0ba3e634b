"""Tutorials and how-to pages as programs, each in a folder of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from airflow_provider_zkmq.embedded.server import free_ports
from tests.promises import TOP

#: A block of a page: its language, the file that it is, if any, and its text.
BLOCK = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
#: Blocks that nothing executes, by their language, each with the reason.
SHOWN = {"text": "it is what a command prints", "console": "it installs packages, which the tests have"}
#: Ports of servers that pages start by themselves, Airflow's among them.
PORTS = ("2191", "2192", "8080", "8793", "8794")


def pages(folder: str) -> list[str]:
    """The pages of a folder below `docs`."""
    return sorted(str(path.relative_to(TOP)) for path in (TOP / "docs" / folder).glob("*.md"))


def dag_files(page: str) -> dict[str, str]:
    """The DAG files of a page, by their names."""
    return {title: text for _, title, text in BLOCK.findall((TOP / page).read_text()) if title.startswith("dags/")}


#: Carries out a block of shell commands between blocks of Python.
_SHELL = "__import__('subprocess').run(['sh', '-eu', '-c', {!r}], check=True)\n"


class Program:
    """A page as a program in a folder of its own, with the files that it shows.

    `python`: its blocks of Python and of shell commands in their order. `script`: its shell commands as one script.

    `hosts` and `root` stand where the page has those of a ZooKeeper for development, free ports where it has others.
    """

    def __init__(self, page: str, folder: Path, hosts: str, root: str) -> None:
        self._folder, self._hosts, self._root = folder, hosts, root
        self.ports = dict(zip(PORTS, map(str, free_ports("127.0.0.1", len(PORTS))), strict=True))
        self.python = self.script = ""
        folder.mkdir()
        for language, title, text in BLOCK.findall((TOP / page).read_text()):
            if title:
                folder.joinpath(title).parent.mkdir(exist_ok=True)
                folder.joinpath(title).write_text(self._moved(text))
            elif language == "python":
                self.python += self._moved(text)
            elif language == "sh":
                self.script += self._moved(text)
                self.python += _SHELL.format(self._moved(text))
            else:
                assert language in SHOWN, f"{page}: nothing executes a block of {language!r}"

    def _moved(self, text: str) -> str:
        """The text, with the test's servers in it."""
        text = text.replace('Zkmq.connect("127.0.0.1:2181"', f'Zkmq.connect("{self._hosts}", "{self._root}"')
        text = text.replace("127.0.0.1:2181", self._hosts).replace("--port 2181", f"--port {self._hosts[10:]}")
        return re.sub(rf"\b({'|'.join(PORTS)})\b", lambda match: self.ports[match[1]], text)

    def run(self, *command: str, **environment: str) -> None:
        """Carry out a command, which must succeed; whatever it has left running is killed."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {name: value for name, value in os.environ.items() if not name.startswith(("ZKMQ_", "AIRFLOW"))}
        own |= {"PATH": path, "PYTHONPATH": os.pathsep.join((str(self._folder), str(TOP)))}
        log = self._folder / "page.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                command, env=own | environment, cwd=self._folder, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code = process.wait(500)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        logs = [*self._folder.glob("*.log")]
        assert code == 0, "\n".join(f"{log.name}: {log.read_text(errors='replace')[-4000:]}" for log in logs)
