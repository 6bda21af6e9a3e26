// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/resize.h"
#include "tessera/formats/png.h"
#include "tessera/monitor/html.h"
#include "tessera/prepare/inspect_page.h"

namespace tessera::prepare {
namespace {

using monitor::escape_html;

constexpr size_t kMostOfAnOddity = 12, kMostPictures = 600;

std::string name_of(const data::Source& source, int64_t index) {
  const std::string name = source.sample_name(index);
  return escape_html(name.substr(name.rfind('/') + 1));
}

}  // namespace

std::string Thumbnails::image(int64_t index) {
  if (budget_ == 0) return "";
  data::Image image;
  try {
    image = source_.read(index, 3);
  } catch (const UserError&) {
    return "";
  }
  const int64_t longer = std::max(image.width, image.height);
  if (longer > side_) {
    const data::Box target{0, 0, std::max<int64_t>(1, image.width * side_ / longer),
                           std::max<int64_t>(1, image.height * side_ / longer)};
    image = data::resize(image, {{0, 0, image.width, image.height}, target.width, target.height, target});
  }
  const auto png = formats::encode_png(image.pixels.data(), image.width, image.height, image.channels);
  const std::string text = monitor::base64(png);
  if (text.size() > budget_) {
    budget_ = 0;
    return "";
  }
  budget_ -= text.size();
  const std::string name = escape_html(source_.sample_name(index));
  return concat("<img loading=\"lazy\" alt=\"", name, "\" title=\"", name, "\" src=\"data:image/png;base64,",
                text, "\">");
}

std::string classes_part(const Inspection& inspection, const data::Source& source, Thumbnails& thumbnails) {
  const size_t classes = std::max<size_t>(1, inspection.classes.size());
  const size_t each = std::clamp<size_t>(kMostPictures / classes, 1, 12);
  std::vector<std::vector<int64_t>> chosen(inspection.classes.size());
  for (const Seen& seen : inspection.seen) {
    auto& indices = chosen[static_cast<size_t>(source.label(seen.index))];
    if (indices.size() < each) indices.push_back(seen.index);
  }
  std::string body;
  for (size_t label = 0; label < chosen.size(); ++label) {
    std::string images;
    for (const int64_t index : chosen[label]) images += thumbnails.image(index);
    if (images.empty()) continue;
    body += concat("<figure class=\"class\"><figcaption><b>", escape_html(inspection.classes[label]), "</b> ",
                   human_count(inspection.class_counts[label]), "</figcaption><div>", images,
                   "</div></figure>\n");
  }
  const char* layout = each > 1 ? "rows" : "singles";
  return monitor::section("pictures", "Pictures", "in the order of labels",
                          body.empty() ? "" : concat("<div class=\"", layout, "\">\n", body, "</div>\n"));
}

std::string odd_part(const Inspection& inspection, const data::Source& source, Thumbnails& thumbnails) {
  std::string body;
  for (const auto& [name, indices] : inspection.odd) {
    std::string tiles;
    for (size_t i = 0; i < std::min(indices.size(), kMostOfAnOddity); ++i) {
      const std::string image = thumbnails.image(indices[i]);
      tiles += concat("<figure class=\"tile\">", image.empty() ? "<div class=\"blank\"></div>" : image,
                      "<figcaption><span class=\"truth\">", name_of(source, indices[i]),
                      "</span></figcaption></figure>\n");
    }
    body += concat("<h3 class=\"odd\">", escape_html(name), " <small>",
                   human_count(static_cast<int64_t>(indices.size())), "</small></h3><div class=\"tiles\">\n",
                   tiles, "</div>\n");
  }
  return monitor::section("odd", "Odd ones", "read like all others; worth a look", body);
}

const char* const kInspectStyle = R"css(
.pairs .wide{width:60%}
.share i{background:var(--blue)}
.chart.profile svg{display:block;width:100%;height:150px;fill:var(--blue);opacity:.85}
.chart.profile figcaption,.ends{font-size:13px;color:var(--soft);display:flex;justify-content:space-between;margin-top:8px}
.sizes .square{position:relative;width:calc(100% - 60px);margin:12px 8px 30px 46px;aspect-ratio:1;max-width:420px}
.sizes svg{width:100%;height:100%;display:block;overflow:visible}
.sizes .grid path{stroke:var(--grid);stroke-width:1;vector-effect:non-scaling-stroke;fill:none}
.sizes .diagonal{stroke:var(--soft);stroke-dasharray:3 4;vector-effect:non-scaling-stroke;fill:none;opacity:.6}
.sizes rect{fill:var(--blue)}
.sizes span{position:absolute;font-size:12px;line-height:14px;color:var(--soft)}
.sizes .h{top:calc(100% + 8px);transform:translateX(-50%)}
.sizes .v{right:calc(100% + 9px);transform:translateY(50%)}
.charts .chart{display:flex;flex-direction:column}
.columns{display:flex;align-items:flex-end;gap:2px;flex:1;min-height:240px;margin-top:18px;border-bottom:1px solid var(--line)}
.columns div{flex:1;align-self:stretch;display:flex;align-items:flex-end}
.columns i{display:block;width:100%;background:var(--blue);border-radius:3px 3px 0 0}
.broken{margin:0;padding:6px 18px;list-style:none;background:var(--card);border:1px solid var(--line);border-radius:12px}
.broken li{padding:8px 0;border-bottom:1px solid var(--grid);overflow-wrap:anywhere}
.broken li:last-child{border:0}
.broken b{display:block;font-weight:600;color:var(--bad)}
.broken span{font-size:13.5px;color:var(--soft)}
h3.odd{margin:18px 0 8px}
.tile img{image-rendering:auto}
.class{margin:0;background:var(--card);border:1px solid var(--line);border-radius:12px;padding:10px 14px 12px;min-width:0}
.class figcaption{font-size:13px;color:var(--soft);overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.class figcaption b{color:var(--text);font-weight:600;margin-right:6px}
.class div{display:flex;flex-wrap:wrap;gap:6px;margin-top:8px}
.class img{height:112px;max-width:100%;border-radius:6px;background:#000}
.rows{display:grid;gap:12px}
.singles{display:grid;gap:8px;grid-template-columns:repeat(auto-fill,minmax(104px,1fr))}
.singles .class{padding:7px 9px 9px}
.singles .class img{height:auto;width:100%;aspect-ratio:1;object-fit:contain}
@media (max-width:640px){.class img{height:64px}.pairs .wide{width:36%}.pairs .wide .share span{display:block}.columns{min-height:180px}}
)css";

}  // namespace tessera::prepare
