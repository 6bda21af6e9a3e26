// SPDX-License-Identifier: Apache-2.0
// --name value pairs of the examples.
#pragma once

#include <tessera/base/error.h>

#include <map>
#include <string>

class Arguments {
 public:
  /// `defaults` are all names there are.
  Arguments(int argc, char** argv, std::map<std::string, std::string> defaults)
      : values_(std::move(defaults)) {
    for (int i = 1; i < argc; i += 2) {
      const std::string name = argv[i];
      const bool known = name.starts_with("--") && values_.contains(name.substr(2));
      if (!known || i + 1 >= argc) {
        std::string all;
        for (const auto& [key, value] : values_) all += " --" + key + " (" + value + ")";
        tessera::user_error({.where = "example",
                             .problem = "unknown argument, or one without a value: " + name,
                             .expected = "--NAME VALUE with one of these (and their defaults):" + all});
      }
      values_[name.substr(2)] = argv[i + 1];
    }
  }
  const std::string& text(const std::string& name) const { return values_.at(name); }
  long whole(const std::string& name) const { return std::stol(values_.at(name)); }
  double number(const std::string& name) const { return std::stod(values_.at(name)); }

 private:
  std::map<std::string, std::string> values_;
};
