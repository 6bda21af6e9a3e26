# SPDX-License-Identifier: Apache-2.0
"""The examples, built as a user would build them: against the installed package, outside of this tree's build."""
import json
import os
import pathlib
import re
import shutil
import subprocess

from files import make_image_folder
from harness import PROGRAM, SOURCE, Missing, Skip, check, check_same_losses, losses, main, scratch, tessera, train
from peers import peers_python

BUILD = pathlib.Path(PROGRAM).parents[1]
MNIST = pathlib.Path(os.environ.get("TESSERA_SHARED_DATA", SOURCE.parent / "shared/data")) / "mnist"


def run(words, folder, seconds=600):
    result = subprocess.run([str(word) for word in words], cwd=folder, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, timeout=seconds)
    check(result.returncode == 0, *words, "exit", result.returncode, result.stdout[-3000:])
    return result.stdout


class Installed:
    """The package in a folder of its own, and one example built against it."""

    def __init__(self, folder, example):
        self.folder, self.example = folder, example
        run(["cmake", "--install", BUILD, "--prefix", folder / "prefix"], folder)
        run(["cmake", "-S", SOURCE / "examples", "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={folder}/prefix"], folder)
        run(["cmake", "--build", folder / "build", "--target", example], folder)

    def launch(self, procs, *words, seconds=600):
        return run([self.folder / "prefix/bin/tessera", "launch", "--procs", procs, self.folder / "build" / self.example,
                    *words], self.folder, seconds)


def own_model():
    """A network that knows nothing of sharding. It checks its own memory: on 4 ranks less than the whole network takes."""
    with scratch() as folder:
        installed = Installed(folder, "own_model")
        for procs, depth in ((1, 8), (2, 8), (4, 24)):
            text = installed.launch(procs, "--depth", depth)
            found = re.search(r"loss ([\d.]+) -> ([\d.]+)", text)
            check(found and float(found[2]) < float(found[1]), procs, text)
            taken, whole = map(int, re.search(r"building took (\d+) MiB, whole they are (\d+) MiB", text).groups())
            print(f"  {procs} ranks: building took {taken} MiB, whole they are {whole} MiB", flush=True)
            check(procs < 4 or taken < whole, procs, text)


def tensor_parallel():
    """Loss and gradients of 3 heads and 25 hidden units are one rank's on ranks that do not divide them."""
    with scratch() as folder:
        installed = Installed(folder, "tensor_parallel")
        for procs, tensor in ((1, 0), (2, 0), (3, 3), (4, 2), (4, 4)):
            text = installed.launch(procs, tensor)
            found = re.search(r"(\d+) x (\d+) ranks: loss ([\d.]+), of one rank ([\d.]+); gradients differ by (\S+)\n"
                              r"equal; after 60 steps: loss ([\d.]+)\n", text)
            check(found and int(found[2]) == (tensor or procs) and int(found[1]) * int(found[2]) == procs, procs, tensor, text)
            check(abs(float(found[3]) - float(found[4])) < 1e-12 and float(found[5]) < 1e-12, procs, tensor, text)
            check(float(found[6]) < 0.8 * float(found[3]), procs, tensor, text)
        words = ["launch", "--procs", "3", installed.folder / "build/tensor_parallel", "2"]
        refused = subprocess.run([installed.folder / "prefix/bin/tessera", *words], cwd=folder, text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, timeout=60)
        check(refused.returncode != 0 and "do not make up 3 ranks" in refused.stdout, refused.returncode, refused.stdout)


def pipeline():
    """Loss and gradients of every schedule are one rank's, with an uneven last micro-batch."""
    with scratch() as folder:
        installed = Installed(folder, "pipeline")
        for procs, stages, schedule, segments in ((1, 1, "1f1b", 1), (4, 2, "1f1b", 2), (4, 2, "interleaved", 4),
                                                  (4, 4, "gpipe", 4)):
            text = installed.launch(procs, stages, schedule)
            found = re.search(r"(\d+) stages x (\d+) ranks, (\d+) segments: loss ([\d.]+), of one rank ([\d.]+); gradients differ "
                              r"by (\S+)\nequal; after 100 steps: loss ([\d.]+)\n", text)
            check(found and [int(found[i]) for i in (1, 2, 3)] == [stages, procs // stages, segments], procs, stages, text)
            check(abs(float(found[4]) - float(found[5])) < 1e-12 and float(found[6]) < 1e-11, procs, stages, text)
            check(float(found[7]) < 0.5 * float(found[4]), procs, stages, text)
        words = ["launch", "--procs", "3", installed.folder / "build/pipeline", "2"]
        refused = subprocess.run([installed.folder / "prefix/bin/tessera", *words], cwd=folder, text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, timeout=60)
        check(refused.returncode != 0 and "stages is 2 with 3 ranks" in refused.stdout, refused.returncode, refused.stdout)


def mnist():
    if not MNIST.exists():
        raise Skip(f"no MNIST in {MNIST} (TESSERA_SHARED_DATA)")
    with scratch() as folder:
        text = Installed(folder, "mnist").launch(2, "--data", f"idx:{MNIST}", seconds=1800)
        found = re.search(r"val_top1=([\d.]+) consolidated_top1=([\d.]+)\n$", text)
        check(found is not None, text[-1000:])
        print("  ", found[0].strip(), flush=True)
        check(float(found[1]) >= 98.9, found[0])
        check(abs(float(found[1]) - float(found[2])) <= 0.05, found[0])


WEIGHTS = """
import sys, torch, torchvision, safetensors.torch
torch.manual_seed(0)
net = torchvision.models.get_model(sys.argv[1], weights=None, num_classes=1000).eval()
with torch.no_grad():
    for module in net.modules():  # statistics that are not those of a fresh network
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1); module.running_var.uniform_(0.5, 1.5); module.bias.normal_(0, 0.1)
    images = torch.randn(2, 3, 64, 64)
    net.fc.weight /= net(images).std()  # logits of deviation 1, for an absolute bound
    safetensors.torch.save_file(net.state_dict(), "weights.safetensors")
    safetensors.torch.save_file({"input": images, "logits": net(images)}, "compare.safetensors")
print(sum(p.numel() for p in net.parameters()))
"""


def resnet():
    """torchvision's parameter counts and logits, and a sharded epoch with every way of wrapping."""
    python = peers_python()
    with scratch() as folder:
        installed = Installed(folder, "resnet")
        for model in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"):
            count = run([python, "-c", WEIGHTS, model], folder).split()[-1]
            text = installed.launch(1, "--model", model, "--weights", folder / "weights.safetensors", "--compare",
                                    folder / "compare.safetensors")
            check(f"{model}: {count} parameters" in text, count, text)
            found = re.search(r"largest difference (\S+) of logits up to \S+, their deviation (\S+)", text)
            check(float(found[1]) <= 1e-4 and 0.5 <= float(found[2]) <= 2, model, text)
            print("  ", model, found[0], flush=True)
        for wrap, more in (("stages", []), ("size:1000000", []), ("type:BasicBlock", ["--recompute", 1]), ("none", []),
                           ("stages", ["--sync_bn", 1])):
            text = installed.launch(2, "--model", "resnet18", "--data", "fake:64", "--image_size", 32, "--classes", 10,
                                    "--batch", 8, "--epochs", 2, "--warmup_epochs", 1, "--lr", 0.02, "--wrap", wrap, *more)
            check(re.search(r"epoch 2  loss [\d.]+ .*val_top1=", text), wrap, text)
        deep = ["--data", "fake:16", "--image_size", 32, "--classes", 10, "--batch", 4, "--lr", 0.01, "--eval_every", 2]
        text = installed.launch(2, "--model", "resnet50", "--wrap", "type:Bottleneck", "--epochs", 3, *deep)
        check([bool(line.count("val_top1=")) for line in text.splitlines() if "epoch " in line] == [False, True, True], text)
        words = [installed.folder / "build/resnet", "--model", "resnet18", "--wrap", "type:Bottleneck", *map(str, deep)]
        refused = subprocess.run(words, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        check(refused.returncode == 2 and "--wrap type:Bottleneck names a kind of block that the network has not" in refused.stdout,
              refused.returncode, refused.stdout)


VIT = """
name = "shades"
[model]
image_size = 16
patch_size = 4
width = 64
depth = 2
heads = 1
mlp_width = 96
classes = 2
[data]
source = "folder:images"
mean = [0.5, 0.5, 0.5]
std = [0.5, 0.5, 0.5]
eval_crop = "squash"
[train]
batch = 16
steps = 4
eval_every_epochs = 0
[optimizer]
lr = 1e-3
[precision]
compute = "fp32"
[run]
threads = 1
"""
RESNET_MODEL = """[model]
family = "resnet"
block = "basic"
blocks = [1, 1]
base_width = 8
image_size = 32
classes = 2
"""
FIXTURES = SOURCE / "tests/weights/fixtures"


def said(text):
    """What the example printed: {image: {class: probability}}."""
    found, image = {}, None
    for line in text.splitlines()[1:]:
        probability = re.fullmatch(r" +([\d.]+) %  (\S+)", line)
        if probability:
            found[image][probability[2]] = float(probability[1]) / 100
        elif not line.startswith(" "):
            image = line
            found[image] = {}
    return found


def check_said_as(found, predicted, name="class"):
    """As `tessera predict --json` said; `name`: "class" or "label"."""
    wanted = {entry["image"]: {str(one[name]): one["probability"] for one in entry["predictions"]} for entry in predicted}
    check(found.keys() == wanted.keys() and len(wanted) > 1, found, wanted)
    for image, probabilities in wanted.items():
        check(list(found[image]) == list(probabilities), image, found[image], probabilities)
        for kind, probability in probabilities.items():
            check(abs(found[image][kind] - probability) <= 1e-6, image, kind, found[image], probability)


def classify():
    """A network without ranks or trainer says what `tessera predict` says, of runs and of files of others."""
    with scratch() as folder:
        classify = Installed(folder, "classify").folder / "build/classify"
        needed = run(["nm", "--dynamic", "--demangle", "--undefined-only", classify], folder)
        check("tessera::weights::open_trained" in needed and "tessera::models::load_model" in needed, needed)
        check(not re.search(r"tessera::(train|launch|mesh|shard|plan|library)::", needed), needed)

        images = make_image_folder(folder / "images", 12) / "val"
        images = [images / "dark/000.jpg", images / "dark/005.png", images / "light/007.png"]
        recipe = folder / "vit.toml"
        recipe.write_text(VIT)
        train(folder, "--procs", 2, recipe=recipe, run="vit").done()
        recipe = folder / "resnet.toml"
        recipe.write_text(re.sub(r"\[model\].*?(?=\[data\])", RESNET_MODEL, VIT, flags=re.DOTALL))
        train(folder, "--procs", 2, recipe=recipe, run="resnet").done()
        for trained in ("vit", "resnet"):
            predicted = json.loads(tessera("predict", trained, *images, "--json", folder=folder, stderr=subprocess.DEVNULL).done())
            text = run([classify, trained, *images], folder)
            check("(step 4): " in text.splitlines()[0], text)
            check_said_as(said(text), predicted)
            check({"dark", "light"} == said(text)[str(images[0])].keys(), text)
            print(f"  {trained}: {text.splitlines()[-2].strip()}, as predicted", flush=True)
        predicted = json.loads(tessera("predict", "vit", *images, "--json", folder=folder, stderr=subprocess.DEVNULL).done())
        for family, output, name in (("hf", "hub", "class"), ("npz", "vit.npz", "label"), ("big_vision", "big.npz", "label")):
            tessera("checkpoint", "convert", "vit", output, "--to", family, folder=folder).done()
            check_said_as(said(run([classify, output, *images], folder)), predicted, name)

        for words, expected in ((["vit"], "[classify] found 1 arguments: expected WEIGHTS IMAGE..."),
                                (["vit", "none.png"], "none.png"),
                                (["nothing", images[0]], "nothing"),
                                ([FIXTURES / "dinov2.pth", images[0]], "does not say the number of heads, and width ")):
            refused = subprocess.run([classify, *words], cwd=folder, text=True, capture_output=True, timeout=60)
            lines = refused.stderr.splitlines()
            check(refused.returncode == 2 and len(lines) == 1 and lines[0].startswith("error: [") and expected in lines[0],
                  words, refused)


def own_loop():
    """Steps, the loop, evaluation and checkpoints from a program of one's own, as `tessera train` has them."""
    with scratch() as folder:
        installed, found = Installed(folder, "own_loop"), {}
        keys = ["precision.compute=fp32", "run.threads=1", "train.log_every=5"]
        for procs in (1, 2):
            text = installed.launch(procs, *keys, f"run.dir={folder}/run{procs}")
            tried = [(float(rate), float(loss)) for rate, loss in re.findall(r"  rate (\S+)  loss (\S+)\n", text)]
            best = min(tried, key=lambda pair: pair[1])[0]
            found[procs] = float(re.search(r"learning rate (\S+)\n", text)[1])
            check(len(tried) > 5 and abs(found[procs] - best / 10) <= 1e-4 * found[procs], text)
            top1 = [float(number) for number in re.search(r"top-1 (\S+) % of new images, (\S+) % of those", text).groups()]
            curve = losses(folder / f"run{procs}")
            check(curve[-1][0] == 64 and curve[-1][1] < 0.7 * curve[0][1] and min(top1) > 50, curve, text)
            print(f"  {procs} ranks: learning rate {found[procs]}, loss {curve[-1][1]:.4f}, top-1 {top1}", flush=True)
            evaluated = json.loads(tessera("eval", folder / f"run{procs}", "--json", folder=folder, stderr=subprocess.DEVNULL).done())
            check(abs(evaluated["top1"] - top1[0]) <= 1e-3, evaluated, top1)
        check(found[1] == found[2], found)
        check_same_losses(losses(folder / "run2"), losses(folder / "run1"), 1e-3)
        # The folder's recipe has the rate that was found, and the loop is the program's own.
        train(folder, "--procs", 2, recipe=folder / "run2/recipe.toml", run="again").done()
        check_same_losses(losses(folder / "again"), losses(folder / "run2"))
        words = [installed.folder / "build/own_loop", "train.batsh=3"]
        refused = subprocess.run(words, cwd=folder, text=True, capture_output=True, timeout=60)
        check(refused.returncode == 2 and "train.batsh" in refused.stderr and "train.batch" in refused.stderr, refused)


CLANG_PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(with_clang LANGUAGES CXX)
find_package(tessera REQUIRED)
add_executable(with_clang with_clang.cpp)
target_link_libraries(with_clang PRIVATE tessera::tessera)
"""
CLANG_PROGRAM = """
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <atomic>
#include <iostream>
#include "tessera/library/run.h"

int main() {
  return tessera::library::run([](tessera::mesh::Mesh& mesh) {
    std::atomic<int64_t> sum = 0;
    at::parallel_for(0, 1000, 10, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sum += i;
    });
    at::Tensor all = at::full({1}, sum.load(), at::kLong);
    mesh.world().sum(all, "the sum");
    if (mesh.rank() == 0) std::cout << "sum " << all.item<int64_t>() << std::endl;
    return 0;
  });
}
"""


def clang():
    """A program with at::parallel_for compiles, links and runs under Clang."""
    compiler = shutil.which("clang++") or shutil.which("clang++-14")
    if compiler is None:
        raise Missing("no clang++ on PATH")
    with scratch() as folder:
        (folder / "CMakeLists.txt").write_text(CLANG_PROJECT)
        (folder / "with_clang.cpp").write_text(CLANG_PROGRAM)
        run(["cmake", "--install", BUILD, "--prefix", folder / "prefix"], folder)
        run(["cmake", "-S", ".", "-B", "build", f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_PREFIX_PATH={folder}/prefix"], folder)
        run(["cmake", "--build", "build"], folder)
        text = run([folder / "prefix/bin/tessera", "launch", "--procs", 2, folder / "build/with_clang"], folder)
        check(f"sum {2 * sum(range(1000))}\n" in text, text)


EXAMPLES = {"own_model": own_model, "tensor_parallel": tensor_parallel, "pipeline": pipeline, "classify": classify, "own_loop": own_loop,
            "mnist": mnist, "resnet": resnet, "clang": clang}
main(*(EXAMPLES[name] for name in os.environ.get("TESSERA_E2E_EXAMPLES", " ".join(EXAMPLES)).split()))
