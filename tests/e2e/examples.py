"""The examples, built as a user would build them: against the installed package, outside of this tree's build."""
import os
import pathlib
import re
import subprocess

from harness import PROGRAM, SOURCE, Skip, check, main, scratch
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
        check(refused.returncode == 2 and "a kind of block that the network has: found type:Bottleneck" in refused.stdout,
              refused.returncode, refused.stdout)


EXAMPLES = {"own_model": own_model, "mnist": mnist, "resnet": resnet}
main(*(EXAMPLES[name] for name in os.environ.get("TESSERA_E2E_EXAMPLES", " ".join(EXAMPLES)).split()))
