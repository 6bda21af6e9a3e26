// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/report_parts.h"

namespace tessera::monitor {

const std::string_view kStyle = R"css(
:root{color-scheme:light dark;--page:#f5f6f9;--card:#fff;--line:#e3e6ec;--grid:#eceef3;--text:#161b26;--soft:#596275;
--blue:#2563eb;--orange:#c2570c;--green:#0b8457;--violet:#7c4fd6;--grey:#7a8396;--good:#0b8457;--bad:#c62f2f;
--hit:29 78 216;--miss:194 76 12;--shadow:0 1px 2px rgb(16 24 40/.05);--pale:.34}
@media (prefers-color-scheme:dark){:root{--page:#0e1116;--card:#171b22;--line:#2a303b;--grid:#242a34;--text:#e8ebf1;
--soft:#9aa4b5;--blue:#6ea3ff;--orange:#f2994a;--green:#3ecf8e;--violet:#b294ff;--grey:#8d97a8;--good:#3ecf8e;--bad:#ff7b72;
--shadow:none;--pale:.5}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",
"Liberation Sans",Arial,sans-serif;font-variant-numeric:tabular-nums;-webkit-text-size-adjust:100%}
main{max-width:1180px;margin:0 auto;padding:40px 28px 72px}
header{display:flex;gap:18px;align-items:center;margin-bottom:26px}
header>div{min-width:0}
svg.mark{width:46px;height:46px;flex:none}
.mark .a{fill:var(--blue)}.mark .b{fill:var(--orange)}.mark .c{fill:var(--green)}
h1{font-size:29px;line-height:1.2;letter-spacing:-.02em;margin:0;overflow-wrap:anywhere}
p.over{margin:0 0 2px;font-size:13px;color:var(--soft)}
p.about{margin:3px 0 0;color:var(--soft)}
h2{font-size:19px;letter-spacing:-.01em;margin:44px 0 14px}
h2 small,h3 small{font-weight:400;color:var(--soft);letter-spacing:0}
h2 small{font-size:14px;margin-left:8px}
h3{font-size:15px;margin:0}
h3 small{font-size:13px;margin-left:4px}
.card,.chart,.units,.tile,.scroll,.pairs,.facts,details,.empty{background:var(--card);border:1px solid var(--line);
border-radius:12px;box-shadow:var(--shadow)}
.empty{padding:18px;margin:0;color:var(--soft)}
.cards{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(164px,1fr))}
.card{padding:14px 16px 13px;display:flex;flex-direction:column;min-width:0}
.label,.below{font-size:13px;color:var(--soft)}
.value{font-size:25px;line-height:1.35;font-weight:650;letter-spacing:-.02em;white-space:nowrap}
.value small{font-size:14px;font-weight:500;color:var(--soft);letter-spacing:0;margin-left:5px}
.charts{display:grid;gap:14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}
.chart,.units{margin:0;padding:15px 18px 12px;min-width:0}
.chart figcaption,.units figcaption{display:flex;flex-wrap:wrap;gap:2px 16px;justify-content:space-between;align-items:baseline;min-height:24px}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:13px;color:var(--soft)}
.legend i,.tip i{display:inline-block;width:11px;height:3px;border-radius:2px;margin-right:6px;vertical-align:middle;background:currentColor}
.legend i.pale{opacity:var(--pale)}
.blue{color:var(--blue)}.orange{color:var(--orange)}.green{color:var(--green)}.violet{color:var(--violet)}.grey{color:var(--grey)}
.frame{position:relative;height:218px;margin:14px 0 24px 44px}
.plot{position:absolute;inset:0;touch-action:pan-y;cursor:crosshair}
.plot svg{width:100%;height:100%;display:block;overflow:visible}
.plot path{fill:none;stroke:currentColor;vector-effect:non-scaling-stroke;stroke-linejoin:round;stroke-linecap:round}
.plot path.grid{stroke:var(--grid);stroke-width:1;shape-rendering:crispEdges}
.plot path.line{stroke-width:2}
.plot path.faint{stroke-width:1;opacity:var(--pale)}
.plot path.dots{stroke-width:7}
.plot path.area{stroke:none;fill:currentColor;opacity:.1}
.y span,.x span{position:absolute;font-size:12px;line-height:14px;color:var(--soft);white-space:nowrap}
.y span{right:calc(100% + 9px);transform:translateY(-50%)}
.x span{top:calc(100% + 8px);transform:translateX(-50%)}
.x span.last{transform:translateX(-80%)}
.units .frame{margin-left:86px}
.units .plot{cursor:default}.units rect{fill:var(--blue)}.units rect.bad{fill:var(--bad)}
.units .y span{max-width:84px;overflow:hidden;text-overflow:ellipsis}
.x span.first{transform:none}.x span.end{transform:translateX(-100%)}
.legend i.scale{width:64px;height:9px;margin:0 6px;background:linear-gradient(90deg,transparent,var(--blue))}
.legend i.bad{height:9px;background:var(--bad)}
.cursor{position:absolute;top:0;bottom:0;width:1px;background:var(--soft);opacity:.6;display:none;pointer-events:none}
.tip{position:absolute;top:4px;display:none;pointer-events:none;z-index:2;padding:7px 10px;border-radius:8px;font-size:12.5px;
line-height:1.45;white-space:nowrap;background:var(--card);border:1px solid var(--line);box-shadow:0 4px 16px rgb(0 0 0/.16)}
.tip b{font-weight:600}.tip div{display:flex;justify-content:space-between;gap:14px}
.note{margin:32px 0 2px;font-size:13px;color:var(--bad)}
.tiles{display:grid;gap:10px;grid-template-columns:repeat(auto-fill,minmax(118px,1fr))}
.tile{margin:0;overflow:hidden;min-width:0}
.tile img,.tile .blank{display:block;width:100%;aspect-ratio:1;object-fit:contain;background:#000;image-rendering:pixelated}
.tile .blank{background:var(--grid)}
.tile figcaption{padding:7px 9px 9px;display:grid;grid-template-columns:1fr auto;gap:0 8px;align-items:center;font-size:12.5px;line-height:1.4}
.tile b,.truth{grid-column:1/-1;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;font-weight:600}
.truth{color:var(--soft);font-weight:400}
.right .mark{color:var(--good)}.wrong .mark,.wrong .truth{color:var(--bad)}
.wrong{border-color:var(--bad);box-shadow:0 0 0 1px var(--bad)}
.sure,.share span{height:4px;border-radius:2px;background:var(--grid);overflow:hidden}
.sure i,.share i{display:block;height:100%;background:var(--good)}
.wrong .sure i{background:var(--bad)}
.percent{color:var(--soft);font-size:12px}
.scroll{overflow-x:auto;padding:14px 16px 16px}
table{border-collapse:separate;border-spacing:2px}
.heat{width:100%;font-size:13px;table-layout:auto}
.heat td{text-align:center;height:36px;min-width:34px;border-radius:4px;padding:0 2px}
.heat td.hit{background:rgb(var(--hit)/var(--v))}
.heat td.miss{background:rgb(var(--miss)/var(--v))}
.heat td.strong{color:#fff}
.heat td.none{color:var(--grey);opacity:.45}
.heat th{font-weight:500;color:var(--soft)}
.heat th[scope=row]{text-align:right;padding-right:8px;white-space:nowrap;max-width:150px;overflow:hidden;text-overflow:ellipsis}
.heat th[scope=col]{vertical-align:bottom;padding-bottom:6px}
.heat th[scope=col] span{writing-mode:vertical-rl;transform:rotate(180deg);max-height:120px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.heat th.corner{font-size:12px;text-align:right;vertical-align:bottom;padding:0 8px 6px 0;white-space:nowrap;font-weight:400}
.heat th.corner span{display:block}
.heat td.recall{color:var(--soft);font-size:12px;white-space:nowrap;padding-left:8px}
.close td{height:28px;min-width:26px;font-size:11px}
.dense td{height:22px;min-width:22px;font-size:9px}.dense{font-size:11px}
.pairs{width:100%;padding:8px 14px;font-size:14px}
.pairs th{font-weight:500;color:var(--soft);text-align:left;font-size:13px}
.pairs td,.pairs th{padding:4px 6px}
.pairs .n{text-align:right;white-space:nowrap}.pairs td:first-child{overflow-wrap:anywhere}
.share div{display:flex;gap:10px;align-items:center;white-space:nowrap}
.share span{flex:1;min-width:20px}.share i{background:var(--orange)}
.facts{margin:0;padding:6px 18px;display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:0 40px}
.facts div{display:flex;justify-content:space-between;gap:18px;padding:8px 0;border-bottom:1px solid var(--grid)}
.facts dt{color:var(--soft);flex:none;max-width:50%}
.facts dd{margin:0;text-align:right;overflow-wrap:anywhere;font-weight:500}
details{margin-top:44px}
summary{padding:14px 18px;cursor:pointer;font-weight:600;font-size:16px}
pre{margin:0;padding:4px 18px 18px;overflow-x:auto;font:13px/1.55 ui-monospace,"SF Mono",Menlo,Consolas,"Liberation Mono",monospace}
@media (max-width:640px){main{padding:24px 14px 48px}h1{font-size:23px}svg.mark{width:38px;height:38px}header{gap:13px;margin-bottom:20px}
h2{margin:34px 0 12px}h2 small{display:block;margin:2px 0 0}.cards{grid-template-columns:1fr 1fr;gap:10px}.card{padding:11px 13px}
.value{font-size:21px}.chart,.units{padding:13px 13px 10px}.frame{height:190px;margin-left:36px}.units .frame{margin-left:76px}.units .y span{max-width:72px}.tiles{grid-template-columns:repeat(3,1fr);gap:8px}
.tile figcaption{padding:6px 7px 8px}.scroll{padding:10px 8px}.heat{font-size:10.5px;border-spacing:1px}
.heat td{min-width:22px;height:26px;padding:0;border-radius:3px}.heat th[scope=row]{max-width:74px;padding-right:4px}
.heat th.corner{padding-right:4px;font-size:10px}.heat .recall{display:none}.dense td{min-width:18px;height:18px;font-size:8px}
.pairs{font-size:13px;padding:6px}.pairs td,.pairs th{padding:4px}.share span{display:none}}
@media print{body{background:#fff}.chart,.units,.tile,.card{break-inside:avoid}}
)css";

const std::string_view kScript = R"js(
for (const figure of document.querySelectorAll('.chart')) {
  const data = JSON.parse(figure.querySelector('script').textContent);
  const plot = figure.querySelector('.plot'), cursor = figure.querySelector('.cursor'), tip = figure.querySelector('.tip');
  const whole = new Intl.NumberFormat('en'), precise = new Intl.NumberFormat('en', {maximumSignificantDigits: 4});
  const show = v => v === null ? 'not finite' : v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential(2)
    : Math.abs(v) >= 1e4 ? whole.format(Math.round(v)) : precise.format(v);
  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle; else high = middle; }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };
  const filled = data.curves.filter(curve => curve.x.length > 0);
  const base = filled.reduce((a, b) => b.x.length > a.x.length ? b : a);
  const move = event => {
    const box = plot.getBoundingClientRect(), range = data.high - data.low;
    const step = base.x[nearest(base.x, data.low + range * (event.clientX - box.left) / box.width)];
    const left = (step - data.low) / range * box.width;
    let text = '<div><b>' + (data.across === 'steps' ? 'step ' + whole.format(step) : whole.format(step) + ' ' + data.across) + '</b>' +
      (data.epochs > 0 ? '<span>epoch ' + (step * data.epochs).toFixed(2) + '</span>' : '') + '</div>';
    for (const curve of filled) {
      const i = nearest(curve.x, step);
      if (Math.abs(curve.x[i] - step) > range / 40) continue;
      text += '<div><span><i class="' + curve.colour + '"></i>' + curve.name + '</span><b>' + show(curve.y[i]) + '</b></div>';
    }
    tip.innerHTML = text;
    tip.style.display = cursor.style.display = 'block';
    cursor.style.left = left + 'px';
    const room = box.width - tip.offsetWidth;
    tip.style.left = Math.max(-30, left > box.width / 2 ? left - tip.offsetWidth - 12 : Math.min(left + 12, room + 14)) + 'px';
  };
  const hide = () => { tip.style.display = cursor.style.display = 'none'; };
  plot.addEventListener('pointermove', move);
  plot.addEventListener('pointerdown', move);
  plot.addEventListener('pointerleave', hide);
}
)js";

}  // namespace tessera::monitor
