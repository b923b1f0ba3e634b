"""What a report says, and how it looks, without Spark: its texts, its page, its capacity."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from datetime import UTC, datetime
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("pyspark")

from airflow_provider_zkmq.engine import ConfigError, CorruptRecord
from airflow_provider_zkmq.error_texts import HEAD, KIND, MASKS
from airflow_provider_zkmq.history import known
from airflow_provider_zkmq.spark import report
from airflow_provider_zkmq.spark.reporting import capacity, sections
from airflow_provider_zkmq.spark.reporting.capacity import Crew, Target
from airflow_provider_zkmq.spark.reporting.rendering import (
    LEAST,
    Section,
    Table,
    name,
    need,
    printable,
    span,
    spell,
    trend,
)
from airflow_provider_zkmq.spark.reporting.report import SCREEN, Report
from tests.delta_tables import commit

pytestmark = pytest.mark.filterwarnings("ignore")  # Spark and its like
HOSTILE = "<script src='http://evil.example/x.js'>alert(1)</script>\"'&$\\frac{\x00\x1b[31m"


def report_on(sections: tuple[Section, ...], queue: str = "q") -> Report:
    return Report((queue,), None, None, datetime(2026, 11, 22, tzinfo=UTC), sections)


def hostile_report(text: str = HOSTILE) -> Report:
    """A report on nothing but hostile names and errors."""
    times = {"first": 0.0, "last": 60.0}
    queue_row = {"queue": text, "runs": 2, "finished": 1, "dead": 1, "cancelled": 0, "retries": 1, "wait_p95": 2.0}
    waits = {f"wait_{each}": 1.0 for each in ("mean", "p50", "p95", "p99", "max")} | {"run_p50": 1.0, "run_p95": 2.0}
    classes = [queue_row | waits | {"retried": 1, "most": 2, "dead_share": 0.5, "class": text}]
    needs = needs_of(
        arrived(0.5, 0.6, 200, 9.0, 90.0, 200.0), [Crew(Counter({text: 200}), 1, 1, 1.9, 9.0)], queue=text, name=text
    )
    group = {"queue": text, "kind": text, "text": text, "failures": 3, "tasks": 2, "consumers": 1, **times}
    worst = {"queue": text, "task_id": text, "class": text, "failures": 3, "last": 60.0, "error": text}
    worker = {"queue": text, "consumer": text, "deliveries": 3, "failed": 1, "failed_share": 1 / 3, "utilisation": 0.5}
    depths = {"depth_mean": 1.0, "depth_max": 2, "depth_end": 0, "arrivals": 1, "ended": 1, "retries": 1, "dead": 1}
    made = (
        sections.overview([queue_row | times]),
        capacity.section(needs, Target(), {text: (0.0, 60.0)}),
        sections.waiting(classes),
        sections.section([group | {"examples": text, "error": text}], [worst]),
        sections.consumer_section([worker | times | {"run_p50": 1.0, "run_p95": 2.0, "busy": 3.0}]),
        sections.depth_section([{"queue": text, "hour": hour, **depths} for hour in (0.0, 3600.0)], []),
        sections.ends(classes),
    )
    return report_on(made, text)


def arrived(
    rate: float,
    peak: float,
    arrivals: int = 500,
    burst: float | None = 1.0,
    mean: float | None = 0.1,
    p95: float | None = 0.5,
) -> dict:
    """What the history says of a class."""
    measured = {"measured_mean": mean, "measured_p95": p95}
    return {"rate": rate, "peak_rate": peak, "arrivals": arrivals, "burst": burst, **measured}


def needs_of(demand: dict, crews: list[Crew], queue: str = "q", name: str = "c", **target) -> list[dict]:
    """What is said of the crews that serve one class."""
    return capacity.needs(queue, crews, {name: demand}, Target(**target))


class Page(HTMLParser):
    """The elements of a page and their attributes, and what is not closed."""

    VOID = frozenset({"meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for each, attributes in self.elements if each == tag]


@pytest.fixture(scope="module")
def html() -> str:
    return hostile_report().html()


def test_the_page_fetches_nothing(html) -> None:
    """No element names an address, what is linked is on the page itself, and the page forbids itself to load."""
    page = Page(html)
    assert not page.open, "every element is closed"
    links = [value for _, each in page.elements for key, value in each.items() if key in {"src", "href"}]
    assert links
    assert all(value.startswith("#") for value in links)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & {tag for tag, _ in page.elements}
    assert re.findall(r"url\((?!#)|@import|<!ENTITY|<\?xml", html) == []
    policy = next(each["content"] for each in page.all("meta") if "http-equiv" in each)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    ids = [each["id"] for _, each in page.elements if "id" in each]
    assert len(ids) == len(set(ids)), "ids of several plots do not meet"


def test_hostile_texts_stay_texts(html) -> None:
    """Names and errors that would be elements, formulas or controls are shown as they are written."""
    assert "&lt;script src=" in html
    assert [each for each in ("<script", "\x1b", "\x00") if each in html] == []
    assert not [value for _, each in Page(html).elements for key, value in each.items() if key.startswith("on")]
    for drawing in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ET.fromstring(drawing)  # noqa: S314  our own


def test_plots_have_words_and_tables_beside_them(html) -> None:
    """Whoever does not see a bar reads its number, and hears what a line shows; its numbers are in a table, too."""
    page = Page(html)
    drawings = page.all("svg")
    assert len([each for each in drawings if each.get("role") == "img"]) == 1
    assert len(drawings) >= 5
    assert all(each.get("aria-hidden") == "true" or each["aria-label"] for each in drawings)
    assert re.findall(r'<td class="(?:count|span|share)"[^>]*><span>[^<]+</span>\s*<svg', html), "beside a number"
    for part in re.findall(r'<section id="(?!findings).*?</section>', html, re.DOTALL):
        assert "<svg" not in part or ("<table" in part and 'scope="col"' in part)
    assert all(each.get("lang") == "en" for each in page.all("html"))
    assert len(page.all("caption")) == len(page.all("table"))


def test_on_a_phone_each_row_is_a_card(html) -> None:
    """Each cell says what it is, as there are no heads of columns; a name goes on in the next line between filters."""
    cells = Page(html).all("td")
    assert cells
    assert all(each["data-title"] for each in cells)
    assert "(max-width: 45rem)" in html
    made = hostile_report("region=eu;size=large").html()
    assert "region=eu; size=large" in made


def test_the_page_has_a_day_and_a_night(html) -> None:
    """Its colours, those of the plots too, are variables that the reader's setting chooses."""
    assert "prefers-color-scheme: dark" in html
    assert "var(--series)" in html
    used = set(re.findall(r"var\((--[\w-]+)\)", html))
    night = html[html.index("prefers-color-scheme: dark") : html.index("box-sizing")]
    assert used <= set(re.findall(r"(--[\w-]+):", night))


def test_a_report_fits_its_terminal(subtests) -> None:
    """No line is wider, no control character gets through, and the class and the number needed are always there."""
    made = hostile_report("performance_class=high_performance" + "\x1b[2J")
    for width in (40, 80, 100, 132, 200):
        with subtests.test(width=width):
            text = made.text(width, full=True)
            assert max(map(len, text.splitlines())) <= max(LEAST, width)
            assert [each in text for each in ("\x1b", "needed now", "too few")] == [False, True, True]


def test_where_nothing_is_wrong_a_report_fits_a_screen(subtests) -> None:
    """At most 40 lines of however many queues and crews; each question is answered, and what is cut off is counted."""
    names = [f"region=region-{n};size=large" for n in range(60)]
    crews = [Crew(Counter({name: 500}), 2, 2, 1.0, 1.0) for name in names]
    needs = capacity.needs("q", crews, dict.fromkeys(names, arrived(1.0, 1.0)), Target())
    queue = {
        "runs": 9,
        "finished": 9,
        "dead": 0,
        "cancelled": 0,
        "retries": 0,
        "wait_p95": 2.0,
        "first": 0.0,
        "last": 1.0,
    }
    overview = sections.overview([queue | {"queue": f"queue-{n}"} for n in range(60)])
    rest = (
        sections.waiting([]),
        sections.section([], []),
        sections.consumer_section([]),
        sections.depth_section([], []),
    )
    made = report_on((overview, capacity.section(needs, Target(), {}), *rest, sections.ends([])))
    for width in (72, 80, 100, 200):
        with subtests.test(width=width):
            text = made.text(width)
            assert len(text.splitlines()) <= SCREEN
            assert re.search(r"region=region-0; size=large +enough", text), "names are not broken"
            assert [each in text for each in ("No delivery failed.", "more rows", "540 tasks ended.")] == [True] * 3
            assert text.count("more rows") == 2
            assert len(made.text(width, full=True).splitlines()) > 120


def test_two_long_names_leave_room_for_the_verdict(subtests) -> None:
    """It is whole, and so are the names where there is room; an error of no kind is not taken for tasks of no class."""
    queue, classes = "orders-with-a-rather-long-name", "region=eu; size=small, size=large, (no filters)"
    row = {"queue": queue, "serves": classes, "verdict": "too few at the peak", "needed": 1, "servers": 2}
    rows = [row, row | {"queue": "census"}]
    section = Section("s", "S", [], [Table("crews", "Crews", "queue serves verdict needed servers", rows)])
    for width in (80, 100, 140):
        with subtests.test(width=width):
            text = report_on((section,)).text(width, full=True)
            assert text.count("too few at the peak") == 2
            assert (width < 100) or queue in text
    assert (spell("", "kind"), spell("", "class")) == ("–", "(no filters)")


def test_a_report_is_plain_data() -> None:
    """JSON without what JSON does not have; rows by the names of their columns."""
    record = json.loads(hostile_report("q").json())
    names = "queues overview since until made findings capacity waiting failures depth"
    assert set(record) >= set(names.split())
    assert record["queues"] == ["q"]
    assert record["capacity"]["capacity"][0]["verdict"] == "too few"
    assert record["waiting"]["classes"][0]["wait_p95"] == 1.0
    assert record["findings"][0]["level"] == "bad"
    assert needs_of(arrived(0.1, 0.1, 9, None, None, None), [])[0]["utilisation"] == math.inf
    endless = Section("s", "S", [], [Table("t", "T", "x", [{"x": math.inf}, {"x": math.nan}])])
    assert endless.record()["t"] == [{"x": None}, {"x": None}]


def test_a_page_is_written_at_one_stroke(tmp_path) -> None:
    """Under its name there is a whole page, and nothing else is left; one that cannot be written leaves nothing."""
    path = tmp_path / "report.html"
    assert hostile_report("q").write_html(path) == str(path)
    assert path.read_text().endswith("</html>\n")
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        hostile_report("q").write_html(tmp_path / "taken")
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "taken"]


def verdicts(demand: dict, crews: list[Crew], **target) -> dict:
    (row,) = needs_of(demand, crews, **target)
    return row


def test_the_advice_names_how_many_more_and_of_which() -> None:
    """Too few, overloaded, nobody, too few at the peak, enough: in words, with the numbers."""
    calm, crew = arrived(1.0, 1.0), Crew(Counter({"c": 500}), 3, 3, 1.0, 1.0)
    assert verdicts(calm, [crew])["verdict"] == "more than enough"
    assert verdicts(calm, [Crew(Counter({"c": 500}), 2, 2, 1.0, 1.0)])["verdict"] == "enough"
    few = verdicts(calm, [Crew(Counter({"c": 500}), 2, 2, 1.8, 1.0)], wait=10.0)
    assert (few["verdict"], few["needed"], few["servers"]) == ("too few", 3, 2)
    assert capacity.advice(few) == "c of q: too few; 2 serve it, 3 are needed."
    over = verdicts(calm, [Crew(Counter({"c": 500}), 2, 2, 2.5, 1.0)])
    assert over["verdict"] == "overloaded"
    assert over["model_p95"] == math.inf
    assert verdicts(calm, [])["verdict"] == "nobody serves it"
    assert capacity.advice(verdicts(calm, [])) == "c of q: nobody serves it."
    peak = verdicts(arrived(1.0, 3.5), [crew])
    assert (peak["verdict"], peak["needed_at_peak"]) == ("too few at the peak", 4)
    assert "in the busiest hour" in capacity.advice(peak)
    late = verdicts(arrived(1.0, 1.0, mean=40.0, p95=90.0), [crew])
    assert late["verdict"] == "slower than modelled"
    assert "look for bursts or delays" in capacity.advice(late)


def test_each_crew_is_told_how_many_it_needs_for_all_its_classes() -> None:
    """Nodes that serve several classes help all of them: a row for each crew, with its share of what arrives."""
    crews = [Crew(Counter({"a": 500}), 2, 2, 1.0, 1.0), Crew(Counter({"a": 100, "b": 500}), 1, 1, 1.0, 1.0)]
    classes = {
        "a": arrived(3.0, 4.0, mean=1.0, p95=7.0),
        "b": arrived(1.5, 1.5, mean=2.0, p95=3.0),
        "z": arrived(0.0, 0.1),
    }
    rows = {row["serves"]: row for row in capacity.needs("q", crews, classes, Target(5.0))}
    assert {name: (row["needed"], row["needed_at_peak"]) for name, row in rows.items()} == {
        "a": (4, 4),
        "a, b": (3, 3),
        "z": (None, None),
    }
    assert rows["a, b"]["rate"] == pytest.approx(1.5 + 3.0 / 6)
    assert (rows["a, b"]["measured_mean"], rows["a, b"]["measured_p95"], rows["a, b"]["arrivals"]) == (2.0, 7.0, 1_000)
    section = capacity.section([rows["a, b"]], Target(5.0), {})
    assert section.said == ["a, b of q: overloaded; 1 serve it, 3 are needed."]


def test_where_the_model_does_not_hold_the_report_says_so(html) -> None:
    """Few tasks, bursts, run times far from exponential, and what was measured says otherwise."""
    row = verdicts(arrived(1.0, 1.0, 20, 30.0, 50.0, 50.0), [Crew(Counter({"c": 500}), 3, 3, 1.0, 0.0)])
    (warning,) = capacity.warnings(row)
    for words in ("only 20 tasks", "in bursts (C² = 30 ", "far from exponential (C² = 0;", "believe what was measured"):
        assert words in warning
    assert capacity.warnings(verdicts(arrived(1.0, 1.0), [Crew(Counter({"c": 500}), 3, 3, 1.0, 1.0)])) == []
    assert [word in html for word in ("Poisson", "at_least")] == [True, True], "what it assumes"


#: Errors, and what they are counted under: their kind, and the rest with what differs from task to task masked.
MASKED = (
    ("ValueError: invalid literal for int(): 'abc\\'d'", "ValueError", "invalid literal for int(): <quoted>"),
    ("KeyError: 'user_42'", "KeyError", "<quoted>"),
    ("S3UploadFailedError: part 7", "S3UploadFailedError", "part <number>"),
    ("NotFound: [Errno 2] No such file: '/tmp/x'", "NotFound", "[Errno 2] No such file: <quoted>"),
    ("exit code 137: Killed /bin/foo --id=77 at 0x7ffe12", "exit code 137", "Killed <path> --id=<number> at <hex>"),
    ("a.b.HTTPError: 404 Client Error for url: https://x.y/z?a=1", "a.b.HTTPError", "404 Client Error for url: <url>"),
    ("got HTTP 503 after 4 tries", "", "got HTTP 503 after <number> tries"),
    ("order77: it can't be done, don't ask", "", "<id>: it can't be done, don't ask"),
    ("lost node-12 at 2026-11-22T10:31:05Z, 10.0.0.7:2181", "", "lost node-<number> at <time>, <address>"),
    ("MemoryError", "MemoryError", ""),
    ("psycopg2.errors.UniqueViolation: Key (id)=(7)", "psycopg2.errors.UniqueViolation", "Key (id)=(<number>)"),
    ("run 1b4e28ba-2fa1-11d2-883f-0016d3cca427 of deadbeef01", "", "run <id> of <hex>"),
    ("ended by signal 9", "ended by signal 9", ""),
    ("C:\\Users\\ann\\x.txt is gone,\n  says ann@example.org", "", "<path> is gone, says <address>"),
)


def test_errors_meet_by_what_does_not_differ_from_task_to_task(subtests) -> None:
    """Numbers, ids, hex, paths, addresses, times and quoted words are masked; what tells errors apart is kept."""
    for error, kind, text in MASKED:
        with subtests.test(error):
            match = re.match(KIND, error)
            assert (match[1] if match else "") == kind
            masked = re.sub(HEAD, "", error)
            for pattern, mask in MASKS:
                masked = re.sub(pattern, mask, masked)
            assert masked.strip() == text


def test_masks_take_no_longer_for_hostile_errors() -> None:
    """Texts that make careless patterns try for ever."""
    for text in ("'" * 500, "a" * 500, "1." * 250, "/" * 500, "a.b-" * 125, '"\\' * 250, "0x" * 250, "f1" * 250):
        for pattern, mask in MASKS:
            text = re.sub(pattern, mask, text)


def test_values_read_as_people_write_them() -> None:
    """Spans, rates, shares and times in their largest units; nothing known is a dash."""
    assert [span(each) for each in (0, 0.0002, 0.0123, 5, 59.96, 61, 3_600, 90_061, math.inf)] == [
        *("0 s", "< 1 ms", "12.3 ms", "5 s", "60 s", "1 min 1 s", "1 h", "1 d 1 h", "∞")
    ]
    assert [spell(each, "rate") for each in (12.5, 0.5, 1 / 120, 1 / 86_400)] == ["12.5/s", "30/min", "30/h", "1/d"]
    assert [spell(each, "utilisation") for each in (0, 0.034, 0.5, math.inf)] == ["0%", "3.4%", "50%", "∞"]
    assert (spell(1_234_567, "runs"), spell(None, "depth_mean"), spell(math.nan, "busy")) == ("1,234,567", "–", "–")
    assert (name(""), printable("a\nb\x1b"), trend([0, 1, None, 4]), trend([])) == (
        *("(no filters)", "a\\nb\\u001b", "▁▃▁█", ""),
    )


def test_an_empty_history_is_a_report_too() -> None:
    """It says that there is nothing, in every form."""
    rest = (
        sections.waiting([]),
        sections.section([], []),
        sections.consumer_section([]),
        sections.depth_section([], []),
        sections.ends([]),
    )
    empty = report_on((sections.overview([]), capacity.section([], Target(), {}), *rest))
    assert "No task ended in this time." in empty.text(80)
    assert "No delivery failed." in empty.html()
    assert [level for level, _ in empty.findings] == ["good", "good"]
    assert json.loads(empty.json())["capacity"]["capacity"] == []


def test_what_is_no_archive_is_refused_with_what_to_do(tmp_path) -> None:
    """No folder, an empty one, another queue, tables not made yet, a damaged table."""
    with pytest.raises(ConfigError, match=r"is no folder: give the directory of the archive; .*run_pipeline, first"):
        known(tmp_path / "nowhere", None)
    with pytest.raises(ConfigError, match="holds no archive of any queue"):
        known(tmp_path, None)
    commit(tmp_path / "census", "bronze", 7, 2)
    with pytest.raises(ConfigError, match=r"no archive of queue 'senses'.*did you mean 'census'"):
        known(tmp_path, ["senses"])
    with pytest.raises(ConfigError, match="archived .* but its tables were not made yet: run the maintenance DAG"):
        known(tmp_path, None)
    for kind in ("runs", "deliveries", "hourly", "consumers"):
        commit(tmp_path / "census", kind, 0, 2)
    assert known(tmp_path, None) == known(tmp_path, ["census", "census"]) == ["census"]
    commit(tmp_path / "idle", "bronze", 0, 2)
    assert known(tmp_path, None) == ["census", "idle"], "where nothing was archived nothing need be made of it"
    (tmp_path / "idle/bronze/_delta_log" / f"{0:020d}.json").write_text("[]")
    with pytest.raises(CorruptRecord):
        known(tmp_path, ["idle"])


def test_what_is_missing_is_named_with_its_extra() -> None:
    """Not the name of a module that could not be imported."""
    need("json")
    missing = r"needs nonesuch and nonesuch2: pip install 'airflow-provider-zkmq\[spark\]'"
    with pytest.raises(ConfigError, match=missing):
        need("json", "nonesuch", "nonesuch2")


def test_values_that_mean_nothing_are_refused(tmp_path, subtests) -> None:
    """A moment without a zone, a time or a number of rows that is none, and percents where parts are meant."""
    commit(tmp_path / "q", "bronze", 0, 2)
    naive = datetime(2026, 1, 1)  # noqa: DTZ001
    wrong = {"since": naive, "recent": 0, "top": 0, "target_wait": -1, "target_utilisation": 80}
    for option, value in wrong.items():
        with subtests.test(option), pytest.raises(ConfigError):
            report(tmp_path, "q", **{option: value})
