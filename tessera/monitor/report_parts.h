// The parts of report.html, each a piece of HTML; empty where the input has nothing to show. Pure.
#pragma once

#include <string>
#include <string_view>

#include "tessera/monitor/report.h"

namespace tessera::monitor {

/// Key figures.
std::string cards_part(const ReportInput& input);
/// Loss, accuracy, throughput, learning rate, and what else was measured.
std::string charts_part(const ReportInput& input);
/// Test images with truth and prediction.
std::string predictions_part(const ReportInput& input);
/// Heat map of up to 40 classes; beyond, the most confused pairs.
std::string confusion_part(const ReportInput& input);

/// Looks and behaviour of the page.
extern const std::string_view kStyle, kScript;

}  // namespace tessera::monitor
