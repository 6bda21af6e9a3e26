#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tessera plan profile: what it measures of a tiny model is complete, and what it refuses."""
import json
import signal

from harness import SOURCE, TINY, check, main, scratch, send, tessera

PORT = 29547
QUICK = ("--rounds", 1, "--batches", "1,2", "--patience", 0)
SLOWED = "something else slowed the cores"  # a warning, on a machine that others use


def profile(folder, *words, text=TINY, **options):
    (folder / "tiny.toml").write_text(text)
    return tessera("plan", "profile", "tiny.toml", *words, folder=folder, **options)


def a_profile_of_two_ranks_is_complete():
    with scratch() as folder:
        text = profile(folder, *QUICK, "--procs", 2).done(60)
        for part in ("2 ranks x 1 threads", "blocks.0", "stem", "head", "all_gather", "shared memory", "wrote profile.json"):
            check(part in text, part, "in", text)
        found = json.loads((folder / "profile.json").read_text())
        check(found["format"] == "tessera.profile" and found["provenance"]["ranks_of_host"] == 2, found)
        units = {(unit["kind"], unit["tensor"], unit["batch"], unit["recompute"]) for unit in found["units"]}
        expected = {(kind, 1, batch, "none") for kind in ("stem", "head") for batch in (1, 2)}
        for batch in (1, 2):
            expected |= {("blocks.0", 1, batch, mode) for mode in ("none", "all")}
            expected |= {("blocks.0", 2, batch, mode) for mode in ("none", "all", "keep_sums")}
        check(units == expected and len(found["units"]) == len(expected), units ^ expected)
        for unit in found["units"]:
            check(unit["forward"] > 0 and unit["backward"] > 0, unit)
        links = {(link["operation"], link["kind"], link["transport"], link["ranks"]) for link in found["links"]}
        shared = {(name, "adjacent", "shared memory", 2) for name in ("all_gather", "reduce_scatter", "exchange")}
        check(links == shared | {("send", "adjacent", "TCP", 2)}, links)
        for link in found["links"]:
            sizes = [sample["bytes"] for sample in link["samples"]]
            check(sizes == [4096 * 4**i for i in range(8)] and link["bytes_per_second"] > 0, link)
        check(found["compute_slowdown"] == found["link_slowdown"] == 1, found)
        check(found["optimizer_seconds"] > 0 and found["data_seconds"] > 0 and found["step_seconds"] > 0, found)


def json_over_tcp_and_generated_images():
    with scratch() as folder:
        text = TINY.replace('source = "fake:256"', 'source = "folder:nowhere"')
        words = ("--procs", 2, "--tensor", 1, "--json", "-o", "tcp.json", "--set", "run.shared_memory=false")
        output = profile(folder, *QUICK, *words, text=text).done(60)
        written = (folder / "tcp.json").read_text()
        check(output.endswith(written), output)
        warning = "".join(line for line in output.removesuffix(written).splitlines(True) if SLOWED not in line)
        check(warning.startswith("warning: data_seconds is measured with generated images") and warning.count("\n") == 1, warning)
        found = json.loads(written)
        check({link["transport"] for link in found["links"]} == {"TCP"}, found["links"])
        check(found["compute_slowdown"] >= 1 and found["link_slowdown"] >= 1, found)


def files_are_not_replaced_without_force():
    with scratch() as folder:
        (folder / "profile.json").write_text("mine")
        one = (*QUICK, "--procs", 1)
        refused(folder, *one, says="the file profile.json exists already")
        check((folder / "profile.json").read_text() == "mine")
        profile(folder, *one, "--force").done(60)
        check(json.loads((folder / "profile.json").read_text())["links"] == [])


def refused(folder, *words, says, text=TINY):
    run = profile(folder, *words, text=text)
    check(run.wait(30) == 2, words, run.tail())
    lines = run.text().splitlines()
    check(len(lines) == 1 and says in lines[0], words, says, run.text())


def bad_input_is_refused_in_one_line():
    with scratch() as folder:
        refused(folder, "--procs", 2, "--tensor", 3, says="--tensor has 3: expected degrees that divide the 2 ranks of --procs")
        refused(folder, "--procs", 0, says="--procs is 0")
        refused(folder, "--batches", "1,0", says="--batches has 0")
        refused(folder, "--rounds", 0, says="--rounds is 0")
        refused(folder, "--patience", -1, says="--patience is -1: expected a number of times, 0 to 1000")
        refused(folder, "--output", "nowhere/profile.json", says="--output is nowhere/profile.json")
        refused(folder, "--set", "model.family=perceptron", says='model.family is "perceptron"')
        resnet = TINY[:TINY.index("[model]")] + '[model]\npreset = "resnet18"\n' + TINY[TINY.index("[data]"):]
        refused(folder, "--procs", 2, "--tensor", 2, text=resnet, says="no layer of a resnet can be cut")


def a_machine_that_is_not_here():
    with scratch() as folder:
        no_torch = {"TESSERA_TORCH_DIR": str(folder)}
        (folder / "tiny.toml").write_text(TINY.replace('"fp32"', '"bf16"'))
        words = ("plan", "assume", "tiny.toml", "--machine", SOURCE / "recipes/machines/h100_sxm.toml", "-o", "h100.json")
        text = tessera(*words, "--ranks-per-host", 4, folder=folder, env=no_torch).done(30)
        for part in ("H100 SXM (assumed), bf16, 4 ranks per host; nothing was measured", "sources: NVIDIA", "wrote h100.json"):
            check(part in text, part, "in", text)
        found = json.loads((folder / "h100.json").read_text())
        check(found["provenance"]["ranks_of_host"] == 4 and "NVIDIA" in found["provenance"]["assumed"], found["provenance"])
        check({unit["tensor"] for unit in found["units"]} == {1, 2, 4}, found["units"])
        again = tessera(*words, folder=folder)
        check(again.wait(30) == 2 and "the file h100.json exists already" in again.text(), again.text())
        predict = ("plan", "predict", "tiny.toml", "--profile", "h100.json", "--ranks", 16, "--set", "train.batch=64")
        text = tessera(*predict, "--set", "parallel.tensor=2", folder=folder, env=no_torch).done(30)
        check("images/s" in text and "assumed: the machine, H100 SXM (assumed): NVIDIA" in text, text)


def links_of_a_described_machine_are_not_measured():
    with scratch() as folder:
        machine = SOURCE / "recipes/machines/h100_sxm.toml"
        text = profile(folder, *QUICK, "--procs", 1, "--tensor", "1,2", "--machine", machine).done(60)
        check("messages between ranks and slowdowns are assumed: H100 SXM: NVIDIA" in text and "1 rank x" in text, text)
        check("passes while all ranks compute, times slower      1.000" in text, text)
        found = json.loads((folder / "profile.json").read_text())
        check({link["transport"] for link in found["links"]} == {"NCCL"} and found["link_slowdown"] == 1.13, found["link_slowdown"])
        check(found["provenance"]["ranks_of_host"] == 8 and "assumed" not in found["provenance"], found["provenance"])
        text = tessera("plan", "predict", "tiny.toml", "--profile", "profile.json", "--ranks", 16, "--set", "train.batch=64",
                       "--set", "parallel.tensor=2", folder=folder).done(30)
        check("assumed: messages between ranks and slowdowns, H100 SXM: NVIDIA" in text, text)
        refused(folder, "--procs", 1, "--tensor", 3, "--machine", machine, "--force", says="divide the 8 ranks of a host of --machine")


def launched(folder, *words, world=4, of_host=2, local_rank=None):
    """plan profile-hosts on ranks that a launcher placed on hosts, which are this one."""
    runs = []
    for rank in range(world):
        environment = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(of_host), "MASTER_ADDR": "127.0.0.1",
                       "LOCAL_RANK": str(rank % of_host if local_rank is None else local_rank(rank)), "MASTER_PORT": str(PORT)}
        words_of_rank = ("plan", "profile-hosts", "tiny.toml", *(() if "--profile" in words else ("--profile", "profile.json")),
                         *(() if "--rounds" in words else ("--rounds", 1)), *words)
        runs.append(tessera(*words_of_rank, folder=folder, env=environment))
    return runs


def messages_between_hosts_join_the_profile():
    with scratch() as folder:
        profile(folder, *QUICK, "--procs", 2).done(60)
        before = json.loads((folder / "profile.json").read_text())
        for run in launched(folder, "-o", "hosts.json"):
            run.done(240)
        found = json.loads((folder / "hosts.json").read_text())
        check(found["links"][:len(before["links"])] == before["links"], "those of a host stay")
        added = {(link["operation"], link["transport"], link["ranks"], link.get("in_host")): link
                 for link in found["links"][len(before["links"]):]}
        groups = {(name, "TCP", 2 * in_host, in_host) for name in ("all_gather", "reduce_scatter", "exchange") for in_host in (1, 2)}
        check(set(added) == groups | {("send", "TCP", 2, 1)}, set(added))
        for (operation, *_), link in added.items():
            check(link["kind"] == "hosts" and len(link["samples"]) == 8 and ("in_pieces" in link) == (operation == "exchange"), link)
        predict = ("plan", "predict", "tiny.toml", "--ranks", 4, "--set", "train.batch=16", "--set", "shard.level=zero3", "--json")
        known = json.loads(tessera(*predict, "--profile", "hosts.json", folder=folder).done(30))
        check(known["stages"][0]["seconds"]["gathers"] > 0, known)
        run = tessera(*predict, "--profile", "profile.json", folder=folder)
        check(run.wait(30) == 2 and "measure with tessera plan profile-hosts" in run.text(), run.text())


def a_rank_of_a_host_dies():
    with scratch() as folder:
        profile(folder, *QUICK, "--procs", 2).done(60)
        before = (folder / "profile.json").read_text()
        runs = launched(folder, "--rounds", 1000)
        runs[0].wait_for_text("all 4 ranks on 2 hosts have met")
        send(runs[3].pid, signal.SIGKILL)
        for run in runs[:3]:
            check(run.wait(30) == 3 and "measuring messages between hosts" in run.text(), run.tail())
        check((folder / "profile.json").read_text() == before, "the profile stays as it was")


def hosts_that_cannot_be_measured_are_refused():
    with scratch() as folder:
        profile(folder, *QUICK, "--procs", 2).done(60)
        for words, says in ((dict(world=1, of_host=1), "one rank, without a launcher"),
                            (dict(world=2, of_host=2), "all 2 ranks are on one host: expected ranks on at least two hosts"),
                            (dict(world=2, of_host=1), "the profile was measured with 2 ranks of a host, and 1 were started on each"),
                            (dict(local_rank=lambda rank: rank // 2), "expected consecutive ranks on each host")):
            for run in launched(folder, **words):
                check(run.wait(60) == 2 and says in run.text(), words, run.tail())
        # Rank 0 alone reads the profile; the others end with what it says.
        tessera("plan", "assume", "tiny.toml", "--machine", SOURCE / "recipes/machines/h100_sxm.toml", "--ranks-per-host", 2,
                "--set", "precision.compute=bf16", "-o", "h100.json", folder=folder).done(30)
        for words, says in ((("--profile", "h100.json", "--set", "precision.compute=bf16"), "expected one that tessera plan profile measured on a CPU"),
                            (("--profile", "none.json"), "none.json"),
                            (("--set", "run.threads=2", "--force"), "the profile was measured with 1 threads of a rank, and these ranks have 2"),
                            (("-o", "tiny.toml"), "the file tiny.toml exists already")):
            for run in launched(folder, *words, world=2, of_host=1):
                check(run.wait(60) == 2 and says in run.text(), words, run.tail())


def more_ranks_than_cores_is_a_warning():
    with scratch() as folder:
        text = profile(folder, "--rounds", 1, "--batches", 1, "--tensor", 1, "--procs", 2, "--set", "run.threads=64").done(60)
        check(text.count("warning: ") == 1 and "warning: 2 ranks x 64 threads share" in text, text)


if __name__ == "__main__":
    main(a_profile_of_two_ranks_is_complete, json_over_tcp_and_generated_images, files_are_not_replaced_without_force,
         bad_input_is_refused_in_one_line, a_machine_that_is_not_here, messages_between_hosts_join_the_profile,
         a_rank_of_a_host_dies, hosts_that_cannot_be_measured_are_refused,
         links_of_a_described_machine_are_not_measured, more_ranks_than_cores_is_a_warning)
