// SPDX-License-Identifier: Apache-2.0
// What is in these pictures? A trained network alone, in one process: no ranks, no loop, nothing of training.
//
//   RANKS=1 ./dev example classify WEIGHTS IMAGE...
//   build/examples/classify runs/quickstart photo.jpg another.png
//
// WEIGHTS is a run or a checkpoint of Tessera's, or a file or folder of a ViT of timm, torchvision, Hugging
// Face or Google (.npz).
#include <tessera/base/error.h>
#include <tessera/data/loader.h>
#include <tessera/models/inference.h>
#include <tessera/weights/trained.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace models = tessera::models;
namespace weights = tessera::weights;

constexpr int64_t kTop = 5;

/// The image as the network was evaluated with: [1, channels, size, size].
torch::Tensor image_of(const std::string& file, const tessera::data::TransformOptions& pixels) {
  return torch::tensor(tessera::data::load_image_for_eval(file, pixels))
      .view({1, pixels.channels, pixels.image_size, pixels.image_size});
}

int classify(const std::string& file, const std::vector<std::string>& images) {
  const weights::Trained trained = weights::open_trained(file);
  std::printf("%s: %s\n", trained.origin.c_str(), tessera::arch::describe(trained.model).c_str());
  for (const std::string& note : trained.notes) std::printf("  %s\n", note.c_str());

  const auto network = models::load_model(trained.model, *trained.tensors);
  const torch::NoGradGuard no_grad;
  for (const std::string& image : images) {
    const torch::Tensor logits = network->forward(image_of(image, trained.pixels), {});
    const auto [probabilities, labels] = logits[0].softmax(0).topk(std::min(kTop, logits.size(1)));
    std::printf("%s\n", image.c_str());
    for (int64_t i = 0; i < labels.numel(); ++i) {
      const auto label = labels[i].item<int64_t>();
      const bool named = label < static_cast<int64_t>(trained.classes.size());
      const std::string name = named ? trained.classes[label] : std::to_string(label);
      std::printf("  %8.4f %%  %s\n", 100 * probabilities[i].item<double>(), name.c_str());
    }
  }
  return 0;
}

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.size() < 2)
      tessera::user_error({.where = "classify",
                           .problem = tessera::concat("found ", words.size(), " arguments"),
                           .expected = "WEIGHTS IMAGE..."});
    return classify(words[0], {words.begin() + 1, words.end()});
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.exit_code();
  }
}
