// SPDX-License-Identifier: Apache-2.0
// The parts of report.html, each a piece of HTML; empty where the input has nothing to show. Pure.
#pragma once

#include <string>
#include <string_view>

#include "tessera/monitor/report.h"

namespace tessera::monitor {

/// Key figures.
std::string cards_part(const ReportInput& input);
/// Loss, accuracy, throughput, share of peak, learning rate, memory, and what else was measured.
std::string charts_part(const ReportInput& input);
/// Activations and gradients of the units.
std::string statistics_part(const ReportInput& input);
/// Test images with truth and prediction.
std::string predictions_part(const ReportInput& input);
/// Heat map of up to 40 classes; beyond, the most confused pairs.
std::string confusion_part(const ReportInput& input);

/// Names and values.
std::string facts_part(const ReportInput& input);

/// The pieces that pages of this room share.
/// Names and values as a list; nothing where there are none.
std::string facts_list(const std::vector<std::pair<std::string, std::string>>& facts);
/// One key figure. All but `value` may be empty; HTML as it is.
std::string card(std::string_view label, const std::string& value, std::string_view unit,
                 const std::string& below);
/// Images with truth and prediction, as many as a page may hold.
struct Tiles {
  std::string html;
  int64_t shown = 0, right = 0;
};
Tiles tiles(const std::vector<PredictionSample>& samples);
/// Mark, kind of page and title; `about` is HTML.
std::string page_header(std::string_view kind, std::string_view title, std::string_view about);
/// The whole page around `body`. `style`: CSS that only this page needs.
std::string page(std::string_view title, std::string_view body, std::string_view style = "");

/// Looks and behaviour of the page.
extern const std::string_view kStyle, kScript;

}  // namespace tessera::monitor
