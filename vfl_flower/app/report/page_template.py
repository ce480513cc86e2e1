"""The template and style of a report, in Python because a bundle has no other files."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1f2933; --muted: #56616c; --grid: #d5dbe1;
  --first: #1d5fa6; --third: #7b8794; --panel: #f4f6f8;
  --warn: #8a3b00; --warnpanel: #fff4e5;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #14191e; --ink: #e6eaee; --muted: #aab5bf; --grid: #3a444e;
    --first: #7ab4ee; --third: #8a949e; --panel: #1d242b;
    --warn: #ffc078; --warnpanel: #2d2212;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans",
    sans-serif;
  overflow-wrap: anywhere;
}
header, main, footer { max-width: 66rem; margin: 0 auto; padding: 0 1.5rem; }
header { padding-top: 2.5rem; }
h1 { font-size: 1.9rem; line-height: 1.25; margin: 0 0 .4rem; text-wrap: balance; }
h2 { font-size: 1.35rem; margin: 2.8rem 0 .6rem; padding-top: .6rem;
     border-top: 2px solid var(--grid); }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .3rem; }
p { margin: .5rem 0; max-width: 46rem; }
.meta, .text, figcaption, caption, footer { color: var(--muted); }
.short { background: var(--panel); border-left: 4px solid var(--first);
         padding: .7rem 1.2rem; margin: 1.2rem 0; }
.short ul { margin: 0; padding-left: 1.1rem; max-width: 50rem; }
.short li { margin: .35rem 0; }
.warning { background: var(--warnpanel); border-left: 4px solid var(--warn);
           padding: .5rem 1.2rem; margin: .8rem 0; }
.warning strong { color: var(--warn); }
.scroll { overflow-x: auto; }
.scroll:focus-visible { outline: 2px solid var(--first); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; margin: .6rem 0 1rem;
        font-size: .93rem; }
caption { text-align: left; padding: .3rem 0; }
th, td { text-align: left; vertical-align: top; padding: .45rem 1rem .45rem 0;
         border-bottom: 1px solid var(--grid); }
thead th { border-bottom: 2px solid var(--third); vertical-align: bottom;
           overflow-wrap: break-word; }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums;
             overflow-wrap: normal; white-space: nowrap; }
thead th.n { white-space: normal; }
th[scope=row] { font-weight: 600; min-width: 9rem; }
table.narrow { width: auto; }
table.narrow caption { white-space: nowrap; }
table.learned { table-layout: fixed; min-width: 40rem; }
.learned th:nth-child(odd) { width: 22%; }
.learned th:nth-child(even) { width: 30%; }
td.text { min-width: 17rem; padding-left: .6rem; }
th.text { padding-left: .6rem; color: inherit; }
code { font: .88em/1.4 ui-monospace, "DejaVu Sans Mono", Consolas, monospace; }
.small { font-size: .85rem; font-weight: 400; color: var(--muted); }
pre { background: var(--panel); padding: .9rem 1.1rem; white-space: pre-wrap; }
figure { margin: 1.4rem 0 2rem; break-inside: avoid; }
figure svg { display: block; width: 100%; max-width: 44rem; height: auto; }
figure.square svg { max-width: 28rem; }
.pair { display: flex; flex-wrap: wrap; gap: 0 2.5rem; }
.pair figure { flex: 1 1 100%; }
.pair figure.square { flex: 1 1 20rem; }
figcaption { max-width: 46rem; font-size: .93rem; margin-top: .4rem; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr;
     gap: .35rem 1.2rem; max-width: 50rem; }
dt { font-weight: 600; } dd { margin: 0; }
footer { margin: 3rem auto 2rem; font-size: .85rem; }
@media screen and (max-width: 40rem) {
  header { padding: 1rem 1rem 0; }
  main, footer { padding: 0 1rem; }
  h1 { font-size: 1.5rem; }
  table.narrow caption { white-space: normal; }
  figure { overflow-x: auto; }
  figure:not(.square) svg { min-width: 30rem; }
  /* The meaning of a number stands below it: beside it, it would be off the screen. */
  .explained thead th.text { display: none; }
  .explained tr { display: flex; flex-wrap: wrap; gap: 0 1rem; padding: .45rem 0;
                  border-bottom: 1px solid var(--grid); }
  .explained th, .explained td { border: 0; padding: 0; }
  .explained tr > :first-child { flex: 1 1 9rem; min-width: 0; }
  .explained td.text { flex: 1 1 100%; min-width: 0; }
  dl { grid-template-columns: 1fr; }
  dd { margin-bottom: .5rem; }
}
@media print {
  :root { color-scheme: light; --panel: #ffffff; --warnpanel: #ffffff; }
  @page { margin: 16mm 14mm; }
  body { font-size: 10.5pt; }
  header, main, footer { max-width: none; padding: 0; }
  header { padding-top: 0; }
  footer { margin: 1rem 0 0; break-before: avoid; }
  h2, h3, caption { break-after: avoid; }
  tr, .warning, .short, table.narrow { break-inside: avoid; }
  thead { display: table-header-group; }
  .scroll { overflow: visible; }
  figure svg { max-width: 15cm; }
  figure.square svg { max-width: 9cm; }
  td.text, table.learned { min-width: 0; }
}
"""

TEMPLATE = """\
{% macro name_of(text) %}{# A line may break after "_". #}\
{{ text|replace("_", "_<wbr>"|safe) }}{% endmacro %}
{% macro table(what, first, numbers, others=(), kind="", caption="", text="") %}
<div class="scroll" role="region" tabindex="0" aria-label="{{ what }}">
<table{% if kind %} class="{{ kind }}"{% endif %}>
{% if caption %}<caption>{{ caption }}</caption>{% endif %}
<thead><tr><th scope="col">{{ first }}</th>\
{% for title in numbers %}<th scope="col" class="n">{{ title|cut }}</th>{% endfor %}\
{% for title in others %}<th scope="col">{{ title }}</th>{% endfor %}\
{% if text %}<th scope="col" class="text">{{ text }}</th>{% endif %}</tr></thead>
<tbody>
{{ caller() }}
</tbody>
</table>
</div>{% endmacro %}
{% macro numbers_of(cells) %}\
{% for cell in cells %}<td class="n">{{ cell }}</td>{% endfor %}{% endmacro %}
{% macro rows_of(lines) %}
{% for title, cells in lines %}
<tr><th scope="row">{{ title|cut }}</th>{{ numbers_of(cells) }}</tr>
{% endfor %}{% endmacro %}
{% macro explained(first, rows) %}
{% call table("Table of " ~ first|lower ~ "s", first, results, (), "explained", \
text="What it means") %}
{% for row in rows %}
<tr><th scope="row">{{ row.title }}\
{% if row.kind %}<br><code class="small">{{ row.name }}</code>{% endif %}</th>\
{{ numbers_of(row["values"]) }}<td class="text">{{ row.text }}\
{% if row.better %} The {{ row.better }}, the better.{% endif %}</td></tr>
{% endfor %}
{% endcall %}{% endmacro %}
{% macro show(figure) %}
<figure{% if figure.name in ("roc", "calibration", "predicted-true") %} class="square"\
{% endif %}>
<h3>{{ figure.title }}</h3>
{{ figure.inline|safe }}
<figcaption>{{ figure.text }} <span class="small">Files: \
figures/{{ figure.name }}.svg and .png</span></figcaption>
</figure>{% endmacro %}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{{ first.question or first.strategy }} - report of a run</title>
<style>{{ style|safe }}</style>
</head>
<body>
<header>
<p class="meta">Report of a run with vfl_flower {{ record.version }}, \
{{ record.written }}</p>
<h1>{{ first.question or first.strategy }}</h1>
<p class="meta">Strategy <code>{{ first.strategy }}</code>, task \
<code>{{ first.task }}</code>\
{% if results|length > 1 %}; results: {{ results|join(", ")|cut }}{% endif %}</p>
</header>
<main>
<section class="short" aria-label="In short">
<ul>
{% for sentence in short %}
<li>{{ sentence }}</li>
{% endfor %}
</ul>
</section>
{% for other, text in warnings %}
<div class="warning"><p><strong>Warning{% if results|length > 1 %}, {{ other|cut }}\
{% endif %}:</strong> {{ text|cut }}.</p></div>
{% else %}
<p>The run gave no warning.</p>
{% endfor %}

<h2 id="good">How good the result is</h2>
{{ explained("Number", metrics) }}
{% for caption, header, rows in tables %}
{% call table("Further table", header[0], header[1:], caption=caption) %}
{{ rows_of(rows) -}}
{% endcall %}
{% endfor %}
<div class="pair">
{% for figure in pictures %}
{{ show(figure) }}
{% endfor %}
</div>
{% if missing %}
<p class="text">There are no figures, since {{ missing }}; then run \
<code>vfl-flower report RUN --rebuild</code>.</p>
{% endif %}

<h2 id="asked">Who took part, and with which settings</h2>
{% call table("Table of the parties", "Party", ("Rows", "Columns", "Labels", "Sent", \
"Received", "Computing", "Sending and starting", "Waiting for others"), \
caption="What each party held and sent, and how it spent its time") %}
{{ rows_of(parties) -}}
{% endcall %}
{% if first.settings %}
{% call table("Table of the settings", "Setting", (), ("Value",), "narrow", \
"Settings that differ from their defaults; docs/settings.md explains them") %}
{% for setting, value in first.settings.items() %}
<tr><th scope="row"><code>{{ setting }}</code></th>\
<td><code>{{ value|cut }}</code></td></tr>
{% endfor %}
{% endcall %}
{% else %}
<p>All settings of the strategy had their default values.</p>
{% endif %}

<h2 id="cost">What it cost, and where the time went</h2>
{{ explained("Cost", costs) }}
{% set caption %}Steps of <code>{{ name|cut }}</code>, all parties together, in order \
of their first requests{% endset %}
{% call table("Table of the steps", "Step", ("Round trips", "Bytes from parties", \
"Bytes to parties", "Waited", "Computing of the slowest"), ("Slowest party",), \
caption=caption) %}
{% for step, cells, slowest in steps %}
<tr><th scope="row"><code>{{ name_of(step) }}</code></th>{{ numbers_of(cells) }}\
<td>{{ slowest|cut }}</td></tr>
{% endfor %}
{% endcall %}

<h2 id="learned">Who learned what</h2>
<p>Each step declares the values of its requests and replies, and a party's program \
sends no other values. The run of <code>{{ name|cut }}</code> sent the values below. \
If a step reveals more than sums, the last column names the kind that a party's \
consent must permit.</p>
{% for who, rows in learned %}
<h3>{{ who }}</h3>
{% call table("Table of what was learned: " + who, "Step", (), \
("Values", "How they travel", "What the step reveals beyond sums"), "learned") %}
{% for row in rows %}
<tr><th scope="row"><code>{{ name_of(row.step) }}</code></th><td>\
{% for value in row["values"] %}<code>{{ name_of(value) }}</code>\
{{ ", " if not loop.last }}\
{% endfor %}</td><td>{{ row.how }}</td><td>\
{% for kind in row.kinds %}<code>{{ kind }}</code>: {{ first.kinds[kind] }}\
{{ "; " if not loop.last }}{% else %}-{% endfor %}</td></tr>
{% endfor %}
{% endcall %}
{% endfor %}

<h2 id="again">How to run it again</h2>
{% if record.command %}
<pre><code>{{ record.command }}</code></pre>
{% endif %}
{% if first.seed is none %}
<p>Without a seed, each party drew random numbers in private, so another run gives \
different numbers.</p>
{% else %}
<p>The seed was {{ first.seed }}. With the same data, another run gives \
{% if first.repeats is false %}nearly the same numbers, since parties draw some \
secrets in private{% else %}exactly the same numbers{% endif %}.</p>
{% endif %}
<p>The run's folder contains the models and <code>result.json</code>, which has all \
numbers of this page: <code>vfl-flower report --rebuild</code> rebuilds the page.</p>

<h2 id="words">Words on this page</h2>
<dl>
{% for word, meaning in words.items() %}
<dt>{{ word }}</dt><dd>{{ meaning }}</dd>
{% endfor %}
</dl>
</main>
<footer><p>This page is one file that loads nothing and runs no script. \
{% if first.beside %}Apart from models of single parties, it{% else %}It{% endif %} \
contains only what the server learned in the run.</p></footer>
</body>
</html>
"""
