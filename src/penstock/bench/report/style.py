"""The style of our pages, and the document around one: no network, no scripts, light and dark."""

from html import escape

CSS = """\
:root {
  color-scheme: light dark;
  --page: #f5f6f8; --card: #ffffff; --ink: #16191d; --quiet: #667080; --rule: #e4e7ec;
  --k0: #1668dc; --k1: #f08c00; --k2: #2b9a66; --k3: #ae3ec9;
  --good: #1f7a4a; --bad: #b3362b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f1216; --card: #181c22; --ink: #e8ebef; --quiet: #96a0ae; --rule: #2a303a;
    --k0: #4c9aff; --k1: #ffb224; --k2: #4cc38a; --k3: #d6a2f0;
    --good: #5fd39a; --bad: #ff8a7a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 860px; margin: 0 auto; padding: 48px 20px 64px; }
.kicker { margin: 0; color: var(--quiet); font-size: 14px; letter-spacing: .04em; }
h1 {
  margin: 4px 0 16px; font-size: 40px; line-height: 1.1; letter-spacing: -.02em;
  text-wrap: balance;
}
h2 { margin: 0; font-size: 20px; letter-spacing: -.01em; }
.lead { margin: 4px 0 20px; color: var(--quiet); }
.quiet { color: var(--quiet); font-size: 14px; }
.servers {
  display: flex; flex-wrap: wrap; gap: 8px 24px; margin: 0 0 12px; padding: 0;
  list-style: none;
}
.servers i, .key i {
  display: inline-block; width: 12px; height: 12px; margin-right: 8px; border-radius: 3px;
}
.k0 { background: var(--k0); } .k1 { background: var(--k1); }
.k2 { background: var(--k2); } .k3 { background: var(--k3); }
.tiles {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px;
  margin: 28px 0 8px;
}
.tiles div, section {
  background: var(--card); border: 1px solid var(--rule); border-radius: 12px;
}
.tiles div { display: flex; flex-direction: column; padding: 18px 20px; }
.tiles strong {
  font-size: 32px; line-height: 1.15; letter-spacing: -.02em;
  font-variant-numeric: tabular-nums;
}
.tiles small { color: var(--quiet); }
section { margin-top: 20px; padding: 24px 28px 28px; overflow-x: auto; }
.key { float: right; margin: 4px 0 0 16px; color: var(--quiet); font-size: 13px; }
.key span { margin-left: 16px; white-space: nowrap; }
.key i { width: 10px; height: 10px; margin-right: 6px; }
section li { margin: 6px 0; }
section ul { margin: 8px 0 0; padding-left: 20px; }
section .checks { list-style: none; padding: 0; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font-size: 13px; font-variant-numeric: tabular-nums; }
svg .axis, svg .quiet { fill: var(--quiet); font-size: 12px; }
svg .end { text-anchor: end; }
svg .middle { text-anchor: middle; }
svg .c0 { fill: var(--k0); } svg .c1 { fill: var(--k1); }
svg .c2 { fill: var(--k2); } svg .c3 { fill: var(--k3); }
svg .l0 { stroke: var(--k0); } svg .l1 { stroke: var(--k1); }
svg .l2 { stroke: var(--k2); } svg .l3 { stroke: var(--k3); }
svg .line { fill: none; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round; }
svg .dot { stroke: var(--card); stroke-width: 2; }
svg .grid { fill: none; stroke: var(--rule); stroke-width: 1; }
svg .whisker { fill: none; stroke: var(--ink); stroke-width: 1.5; opacity: .45; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td {
  padding: 8px 0 8px 16px; border-bottom: 1px solid var(--rule); text-align: right;
  white-space: nowrap;
}
th:first-child { padding-left: 0; text-align: left; }
td.quiet { white-space: normal; text-align: left; }
thead th { color: var(--quiet); font-size: 13px; font-weight: 500; }
tbody th { font-weight: 400; }
tbody tr:last-child > * { border-bottom: 0; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
@media print { body { background: none; } section, .tiles div { break-inside: avoid; } }
@media (max-width: 600px) {
  h1 { font-size: 30px; }
  section { padding: 20px 16px; }
  .key { float: none; margin: 0 0 8px; }
  .key span { margin: 0 16px 0 0; }
  main { padding-top: 28px; }
}
"""


def document(title: str, body: str) -> str:
    """Return a self-contained page."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{CSS}</style>\n"
        f"</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
