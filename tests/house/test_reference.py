"""The reference is whole: each public name, verb, error, option and metric has its place, and an example."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_zkmq import editing, engine, filequeue, provider_info, spark, textqueue
from airflow_provider_zkmq.cli import main as cli
from airflow_provider_zkmq.engine import ZkmqError, errors
from tests.house import command_line, site
from tests.house.package import PACKAGE, TOP, modules

REFERENCE = sorted((TOP / "docs" / "reference").glob("*.md"))
#: Packages whose public names are those of their `__all__`.
PUBLIC = {"engine": engine, "spark": spark, "textqueue": textqueue, "filequeue": filequeue, "editing": editing}
#: Folders whose classes are the provider's in Airflow, where they have its prefix.
OF_AIRFLOW = ("operators", "sensors", "triggers", "notifications", "decorators", "hooks", "queues")
#: Triggers that operators and sensors make.
MADE_BY_OTHERS = {"ZkmqTaskTrigger", "ZkmqReadyTrigger", "ZkmqLeaseTrigger"}
#: What stands in a DAG for a class that no DAG names.
SPELT = {"ZkmqMessageQueueProvider": "MessageQueueTrigger", "ZkmqDecoratedOperator": "@task.zkmq"}
#: Methods of a class without an example, since workers, queue files or the data source alone call them.
OF_HANDLERS = {"mark_begun", "mark_ended", "settle", "settle_later"}
WITHOUT_EXAMPLE = {
    engine.Claim: OF_HANDLERS,
    filequeue.FileClaim: OF_HANDLERS,
    engine.UnitOfWork: {"adopt", "close", "settle"},
    textqueue.TextQueue: {"identity", "stamp", "writing", "overwrite"},
    textqueue.Message: {"overwrite"},
    spark.WriteReport: {"of"},
}
#: Variables that are nobody's to set: a shell's protocol, a process's mark, what commands of a worker begin with.
INTERNAL = {"ZKMQ_BEGIN", "ZKMQ_COMPLETE", "ZKMQ_WORKER_TRIAL"}


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def described() -> list[str]:
    """The names that the pages describe by their docstrings."""
    return [name for page in REFERENCE for name in described_on(page)]


def described_on(page: Path) -> list[str]:
    """The names that one page describes."""
    return re.findall(r"^::: ([\w.]+)$", text(page), re.MULTILINE)


def shown_on(page: Path) -> str:
    """All that a page shows in Python."""
    return "\n".join(re.findall(r"(?ms)^```python\n(.*?)^```", text(page)))


def members(owner: type) -> dict[str, Any]:
    """The public methods and properties of a class, those of its bases in this package among them."""
    own = [kind for kind in reversed(owner.__mro__) if kind.__module__.startswith(PACKAGE)]
    found = {name: value for kind in own for name, value in vars(kind).items() if name[0] != "_"}
    called = (classmethod, staticmethod, property)
    return {
        name: value
        for name, value in found.items()
        if (callable(value) or isinstance(value, called)) and not inspect.isclass(value)
    }


def nav() -> list[Any]:
    """The nav of the site. The rest of that file is not read: it names objects of Python."""
    (lines,) = re.findall(r"(?m)^nav:\n((?: .*\n)+)", text(TOP / ".mkdocs.yml"))
    return list(yaml.safe_load(lines))


def listed(part: Any) -> list[str]:
    """The pages that a part of the nav names."""
    if isinstance(part, str):
        return [part]
    return [page for each in (part.values() if isinstance(part, dict) else part) for page in listed(each)]


def classes_of_airflow() -> dict[str, type]:
    """The provider's public classes in Airflow, by their whole names."""
    names = [module.path.removesuffix(".py").replace("/", ".") for module in modules()]
    loaded = [import_module(name) for name in names if name.split(".")[1:2] in [[folder] for folder in OF_AIRFLOW]]
    return {
        f"{module.__name__}.{name}": value
        for module in loaded
        for name, value in vars(module).items()
        if name.startswith("Zkmq") and isinstance(value, type) and value.__module__ == module.__name__
    }


def test_every_public_name_is_described_once() -> None:
    """Of the engine and of the other libraries in the package; a name that is none any more is no page's."""
    names = [f"{PACKAGE}.{package}.{name}" for package, module in PUBLIC.items() for name in module.__all__]
    places = described()
    of_public = [name for name in places if name.split(".")[1] in PUBLIC]
    assert sorted(name for name in of_public if name.count(".") == 2) == sorted(names)
    assert len(places) == len(set(places))


def test_a_class_whose_methods_stand_one_by_one_has_all_of_them() -> None:
    """The methods of a queue are in sections of their page, by what they are for."""
    page = TOP / "docs/reference/python-queue.md"
    whole = f"{PACKAGE}.engine.Queue"
    one_by_one = [name.removeprefix(f"{whole}.") for name in described_on(page) if name != whole]
    (together,) = re.findall(r"members: \[(.*)\]", text(page))
    assert sorted([*one_by_one, *together.split(", ")]) == sorted(members(engine.Queue))


def test_every_class_of_airflow_is_described() -> None:
    """Those with the provider's prefix, and whatever else the provider's metadata name."""
    info = provider_info.get_provider_info()
    named = {
        *info["notifications"],
        *info["extra-links"],
        *info["queues"],
        *(each["class-name"] for each in info["task-decorators"]),
        *(each["hook-class-name"] for each in info["connection-types"]),
        *(each[key] for each in info["asset-uris"] for key in ("handler", "factory", "to_openlineage_converter")),
    }
    missing = (classes_of_airflow().keys() | named) - set(described())
    assert not missing


def test_every_public_method_says_what_it_does(subtests: pytest.Subtests) -> None:
    """Each function and class that is public has a docstring, and so has each of its public methods."""
    of_packages = [getattr(module, name) for module in PUBLIC.values() for name in module.__all__]
    for owner in [*of_packages, *classes_of_airflow().values()]:
        if not (inspect.isclass(owner) or inspect.isfunction(owner)) or not owner.__module__.startswith(PACKAGE):
            continue
        with subtests.test(owner=owner.__qualname__):
            assert inspect.getdoc(owner)
            called = members(owner) if inspect.isclass(owner) else {}
            assert not [name for name, value in called.items() if not inspect.getdoc(value)]


def test_every_public_method_has_an_example(subtests: pytest.Subtests) -> None:
    """On the page that describes it; event loops have the same methods, and a call or two of each class."""
    for page in REFERENCE:
        code = shown_on(page)
        for name in described_on(page):
            package, _, rest = name.removeprefix(f"{PACKAGE}.").partition(".")
            owner = getattr(PUBLIC.get(package), rest, None)
            if not inspect.isclass(owner) or issubclass(owner, BaseException):
                continue
            with subtests.test(name=name):
                called = members(owner).keys() - WITHOUT_EXAMPLE.get(owner, set())
                without = {each for each in called if not re.search(rf"\.{each}\b", code)}
                assert not without or ("Async" in name and without < called)


def test_every_public_class_has_an_example() -> None:
    """A program of the reference uses it; those of Airflow are also linked to a DAG or a page that a test runs."""
    code = "\n".join(map(shown_on, REFERENCE))
    names = [name for package, module in PUBLIC.items() for name in module.__all__]
    assert not [name for name in names if not re.search(rf"\b{name}\b", code)]
    page, programs = text(TOP / "docs/reference/airflow.md"), shown_on(TOP / "docs/reference/airflow.md")
    sections = [part.partition("\n")[::2] for part in re.split(r"^::: ", page, flags=re.MULTILINE)[1:]]
    links = [(name.rpartition(".")[2], re.search(r"Example: \[[^]]+\]\(([^)#]+)", rest)) for name, rest in sections]
    for name, link in links:
        if name.startswith("Zkmq") and name not in MADE_BY_OTHERS:
            assert link, f"{name} has no link to a longer example"
            assert SPELT.get(name, name) in programs, f"{name} is not shown"
            example = text((TOP / "docs/reference" / link[1]).resolve())
            assert SPELT.get(name, name) in example


def test_every_error_says_what_to_do_and_the_exit_code() -> None:
    """The page has each class of the tree once, in the tree's order, with the code that the command line gives it."""
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, ZkmqError)]
    parts = re.split(
        r"^::: airflow_provider_zkmq\.engine\.(\w+)\n", text(TOP / "docs/reference/errors.md"), flags=re.MULTILINE
    )[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    assert sorted(sections) == sorted(kind.__name__ for kind in kinds)
    for kind in kinds:
        section = sections[kind.__name__]
        assert re.search(r"\*\*What to do\.\*\* \S.{40}", section), kind
        error = kind.__new__(kind)
        assert f"**Exit code** of `zkmq`: {cli._exit_code(error)}." in section, kind


def test_the_reference_of_the_command_line_is_of_its_verbs() -> None:
    """`python -m tests.house.command_line --write` mends it."""
    assert text(command_line.PAGE) == command_line.reference()


def test_each_option_of_the_configuration_is_told() -> None:
    """Fields of the connection, options of Airflow's configuration, and the variables that the code reads."""
    page = text(TOP / "docs/reference/configuration.md")
    info = provider_info.get_provider_info()
    fields = info["connection-types"][0]["conn-fields"]
    options = info["config"]["zkmq"]["options"]
    read = {name for module in modules() for name in re.findall(r"\bZKMQ_[A-Z][A-Z_]*[A-Z]\b", module.text)} - INTERNAL
    assert len(fields) > 8
    assert not [name for name in (*fields, *options, *read) if f"`{name}`" not in page]


def test_each_metric_of_a_worker_is_told_and_no_other() -> None:
    """By the names under which a worker shows them."""
    from airflow_provider_zkmq.worker_metrics import WorkerMetrics

    named = set(re.findall(r"``(zkmq_\w+)``", WorkerMetrics.__doc__ or ""))
    listed_names = set(re.findall(r"^\| `(zkmq_\w+)`", text(TOP / "docs/reference/metrics.md"), re.MULTILINE))
    assert named == listed_names


def test_each_outcome_of_a_delivery_is_explained_and_no_other() -> None:
    """Those that the engine writes into the history of a task."""
    engine_modules = (module.text for module in modules() if module.path.startswith(f"{PACKAGE}/engine/"))
    written = {name for code in engine_modules for name in re.findall(r'\bwith_attempt\(\s*"(\w+)"', code)}
    page = text(TOP / "docs/reference/events.md")
    told = re.findall(r"^\| `(\w+)` \|.*\| (?:yes|no)[^|]* \|$", page, re.MULTILINE)
    assert len(written) > 3
    assert set(told) == written


def test_no_page_outside_of_the_reference_is_long() -> None:
    """300 lines, which are read in a quarter of an hour; what is looked up may be longer."""
    reference = next(part["Reference"] for part in nav() if "Reference" in part)
    looked_up = {TOP / "docs" / page for page in listed(reference)}
    pages = set((TOP / "docs").rglob("*.md")) - looked_up
    long = {str(page.relative_to(TOP)): len(text(page).splitlines()) for page in pages}
    assert {page: lines for page, lines in long.items() if lines > 300} == {}


def test_a_folder_in_the_nav_stands_for_its_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their titles, its index first; a folder that is not there has none."""
    monkeypatch.setattr(site, "DOCS", tmp_path)
    (tmp_path / "how-to").mkdir()
    for name, heading in (("a", "Tutorial: retry"), ("b", "Limit: how many"), ("index", "What to do")):
        (tmp_path / "how-to" / f"{name}.md").write_text(f"# {heading}\n")
    nav = [{"How-to": ["guide.md", "how-to/"]}, "tutorials/"]
    pages = [{"What to do": "how-to/index.md"}, {"Limit": "how-to/b.md"}, {"Retry": "how-to/a.md"}]
    assert site.unfolded(nav) == [{"How-to": ["guide.md", *pages]}]


def test_every_page_is_in_the_nav_once() -> None:
    """Folders of the nav stand for their pages; the build of the site refuses a page that is not there, too."""
    pages = listed(site.unfolded(nav()))
    assert sorted(pages) == sorted(str(path.relative_to(TOP / "docs")) for path in (TOP / "docs").rglob("*.md"))
