"""How the page looks, by day and by night, on a phone and on paper."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --paper: #f6f7f9; --card: #ffffff; --ink: #1d2733; --soft: #5a6775; --line: #d9dee5;
  --good: #1b7f4b; --warn: #a15c00; --bad: #c02b2b; --good-bg: #e3f4ea; --warn-bg: #fdf0dc; --bad-bg: #fde7e7;
  --link: #1f5fbf; --stripe: #f4f6f8; --series-0: #9db8dd; --series-1: #2f66b5; --series-2: #7a4fb0;
  --series-3: #2f66b5; --series-4: #1b8f6a; --series-5: #d0861a; --series-6: #c02b2b; --series-7: #6b7785; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161c; --card: #1b2129; --ink: #e4e9ef; --soft: #9aa7b5;
  --line: #333d49; --good: #5fd097; --warn: #f0b45c; --bad: #ff8585; --good-bg: #173527; --warn-bg: #3a2c14;
  --bad-bg: #431f22; --link: #8ab8ff; --stripe: #202731; --series-0: #3d567c; --series-1: #7fb0f5; --series-2: #bb9af0;
  --series-3: #7fb0f5; --series-4: #5fd0ac; --series-5: #f0b45c; --series-6: #ff8585; --series-7: #9aa7b5; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0 auto; padding: 1.2rem clamp(.8rem, 3vw, 2.5rem) 3rem; max-width: 88rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans",
  "DejaVu Sans", sans-serif; }
h1 { font-size: 1.55rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0 0 .5rem; }
header p { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: .8rem 0 1rem; }
a { color: var(--link); text-decoration: none; } a:hover, a:focus { text-decoration: underline; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem 1.2rem;
  margin: 0 0 1rem; }
.said { margin: 0 0 .5rem; max-width: 75rem; overflow-wrap: anywhere; }
.findings { list-style: none; margin: 0; padding: 0; display: grid; gap: .45rem; }
.findings li { display: flex; gap: .7rem; align-items: baseline; padding: .4rem .7rem; border-radius: .4rem;
  border-left-style: solid; border-left-width: .3rem; overflow-wrap: anywhere; }
.mark { font-weight: 650; min-width: 2.6rem; }
.good { background: var(--good-bg); border-color: var(--good); } .good .mark, .badge.good { color: var(--good); }
.warn { background: var(--warn-bg); border-color: var(--warn); } .warn .mark, .badge.warn { color: var(--warn); }
.bad { background: var(--bad-bg); border-color: var(--bad); } .bad .mark, .badge.bad { color: var(--bad); }
.note { background: var(--stripe); border-color: var(--soft); } .note .mark { color: var(--soft); }
.badge { padding: .05rem .5rem; border-radius: 1rem; font-weight: 600; white-space: nowrap; }
figure { margin: .6rem 0 1rem; } figure svg { display: block; width: 100%; max-width: 60rem; height: auto; }
figure svg text { font-family: inherit !important; }
figcaption, caption { color: var(--soft); font-size: .88rem; text-align: left; }
caption { padding: .2rem 0 .35rem; }
.scroll { overflow-x: auto; margin: .4rem 0 .8rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .7rem; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: anywhere; max-width: 32rem; } td.text { min-width: 6rem; }
td.trend { white-space: nowrap; max-width: none; }
td.name { min-width: 17rem; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
tbody tr:nth-child(even) { background: var(--stripe); }
.number { text-align: right; white-space: nowrap; }
details { margin: .3rem 0; } summary { cursor: pointer; color: var(--soft); }
.notes ul { margin: .4rem 0; padding-left: 1.2rem; color: var(--soft); max-width: 75rem; }
.empty { color: var(--soft); }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
@media print { body { background: none; max-width: none; } section { break-inside: avoid; } nav { display: none; } }
"""
