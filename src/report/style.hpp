#pragma once

namespace offstage::report {

/// The page's style. Colours of runs and phases are those of Okabe and Ito, which colour-blind
/// readers tell apart, made lighter on dark ground.
/// Source: M. Okabe, K. Ito, Color Universal Design (2008).
inline constexpr char const* page_style = R"css(
:root { color-scheme: light dark; --ground: #ffffff; --card: #f7f7f5; --ink: #1d1d1f; --soft: #5c5f66; --grid: #e3e3df;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #aa4499; --c4: #c08a00; --c5: #3fa0d8; --c6: #6b6b6b;
  --forward: #0072b2; --backward: #e69f00; --update: #009e73; --other: #a3a3a3; --limit: #d55e00; }
@media (prefers-color-scheme: dark) { :root { --ground: #16181c; --card: #1f2227; --ink: #eceef1; --soft: #a2a8b3; --grid: #363b44;
  --c0: #56b4e9; --c1: #ff8a3d; --c2: #2ecc9b; --c3: #e59bd0; --c4: #f0c945; --c5: #9ad7ff; --c6: #b8b8b8;
  --forward: #56b4e9; --backward: #f0b429; --update: #2ecc9b; --other: #7d838d; --limit: #ff8a3d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 28px 20px 60px; }
header p, section > p { color: var(--soft); margin: 2px 0 10px; max-width: 75ch; }
h1 { font-size: 28px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 20px; margin: 0 0 2px; } h3 { font-size: 16px; margin: 14px 0 6px; }
section { margin: 30px 0 0; }
.figures { display: flex; flex-wrap: wrap; gap: 16px; }
figure { flex: 1 1 100%; margin: 0; padding: 12px 12px 6px; background: var(--card); border-radius: 10px; min-width: 0; }
figure.half { flex: 1 1 calc(50% - 8px); min-width: 320px; max-width: calc(50% - 8px); }
@media (max-width: 720px) { figure.half { max-width: 100%; } }
figcaption { font-weight: 600; margin: 0 0 6px; font-size: 14px; overflow-wrap: anywhere; }
figure > svg { display: block; width: 100%; height: auto; }
svg text { font-size: 12px; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .label { fill: var(--ink); text-anchor: middle; } svg .tick.x { text-anchor: middle; } svg .tick.y, svg .row { text-anchor: end; }
svg .row, svg .words { fill: var(--ink); }
.grid { stroke: var(--grid); stroke-width: 1; fill: none; } .axis { stroke: var(--soft); stroke-width: 1; fill: none; }
.line { fill: none; stroke: currentColor; stroke-linejoin: round; stroke-linecap: round; }
.thin { stroke-width: 1; opacity: .45; } .bold { stroke-width: 2.2; } .dashed { stroke-dasharray: 7 5; } .dotted { stroke-dasharray: 2 5; }
.band { fill: currentColor; opacity: .22; }
.mark { fill: currentColor; stroke: var(--card); stroke-width: 1; } .mark.hollow { fill: var(--card); stroke: currentColor; stroke-width: 2; }
.limit { stroke: currentColor; stroke-width: 2.5; fill: none; } .limited { color: var(--limit); stroke-width: 3.5; } .planned { color: var(--ink); stroke-dasharray: 4 3; }
.bar { fill: currentColor; }
.ink { color: var(--ink); } .forward { color: var(--forward); } .backward { color: var(--backward); } .update { color: var(--update); } .other { color: var(--other); }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); } .c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; margin: 4px 0 10px; padding: 0; font-size: 14px; }
.legend li { display: flex; align-items: center; gap: 6px; } svg.key { width: 26px; height: 14px; flex: none; display: inline-block; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--grid); vertical-align: top; } thead th { color: var(--soft); font-weight: 500; }
tbody th { font-weight: 400; } .runs th svg { margin-right: 6px; } small { color: var(--soft); }
.advice { border-left: 4px solid var(--backward); padding: 4px 12px; margin: 12px 0 0; color: var(--ink); background: var(--card); max-width: none; }
details { margin: 10px 0; } summary { cursor: pointer; } pre { overflow-x: auto; font-size: 13px; background: var(--card); padding: 12px; border-radius: 10px; }
@media print { :root { color-scheme: light; } section { break-inside: avoid; } }
)css";

}  // namespace offstage::report
