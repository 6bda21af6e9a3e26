# SPDX-License-Identifier: Apache-2.0
"""Ranks whose run folders are different disks: each rank in a mount and host-name namespace of its own.

They train, save, resume; and the tools make one checkpoint of the parts.
"""
import contextlib
import json
import os
import subprocess

from harness import PROGRAM, Run, Skip, check, free_port, losses, main, scratch, settings, tessera, tiny_recipe

HOSTS = ("nodea", "nodeb")


def need_namespaces():
    if os.getuid() != 0 or subprocess.run(["unshare", "-m", "-u", "true"], capture_output=True).returncode != 0:
        raise Skip("mount namespaces need root")


@contextlib.contextmanager
def two_hosts(folder, *words, own="run__dir", shared=()):
    """Two ranks; folder/run is folder/nodea for rank 0 and folder/nodeb for rank 1, and what setting `own` names."""
    for name in (*HOSTS, "run"):
        (folder / name).mkdir(exist_ok=True)
    environment = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [PROGRAM, "train", tiny_recipe(folder), *settings(**{own: folder / "run"}), *shared, *words]
    with contextlib.ExitStack() as stack:
        runs = []
        for rank, host in enumerate(HOSTS):
            script = f'hostname {host}; mount --bind {folder}/{host} {folder}/run && exec "$@"'
            inside = ["unshare", "-m", "-u", "sh", "-c", script, "sh", *command]
            runs.append(stack.enter_context(Run(inside, folder, {**environment, "RANK": str(rank)})))
        yield runs


def train_on_two_hosts(folder, *words, **places):
    with two_hosts(folder, *words, **places) as runs:
        return [run.done() for run in runs]


def files(folder, step):
    return sorted(path.name for path in (folder / f"checkpoints/step_{step:08}").iterdir())


def each_host_keeps_its_part_and_resumes():
    need_namespaces()
    with scratch() as folder, scratch() as other:
        every = settings(checkpoint__every_steps=2)
        train_on_two_hosts(folder, *every, *settings(train__steps=4, schedule__name="constant"))
        for rank, host in enumerate(HOSTS):
            expected = ["manifest.json", f"shard-{rank:05}-of-00002.safetensors"]
            check(files(folder / host, 4) == expected, host, files(folder / host, 4))
        texts = {(folder / host / "checkpoints/step_00000004/manifest.json").read_text() for host in HOSTS}
        check(len(texts) == 1, "one manifest in both folders")
        out = train_on_two_hosts(folder, "--resume", "latest", *every,
                                 *settings(train__steps=8, schedule__name="constant"))
        check("at step 4" in out[0], out[0])
        train_on_two_hosts(other, *every, *settings(train__steps=8, schedule__name="constant"))
        check(losses(folder / "nodea") == losses(other / "nodea"), "resumed and uninterrupted losses")

        # One host lost its newest step: both go back to the one that they have.
        (folder / "nodeb/checkpoints/step_00000008").rename(folder / "gone")
        out = train_on_two_hosts(folder, "--resume", "latest", *every,
                                 *settings(train__steps=8, schedule__name="constant"))
        check("at step 6" in out[0], out[0])
        check(losses(folder / "nodea") == losses(other / "nodea"), "after going back")


def only_checkpoints_are_the_hosts_own():
    """A run folder that both see, checkpoint.dir on a disk of each."""
    need_namespaces()
    with scratch() as folder:
        every = settings(checkpoint__every_steps=2, schedule__name="constant", run__dir=folder / "shared")
        places = {"own": "checkpoint__dir", "shared": every}
        train_on_two_hosts(folder, *settings(train__steps=2), **places)
        for rank, host in enumerate(HOSTS):
            parts = sorted(path.name for path in (folder / host / "step_00000002").iterdir())
            check(parts == ["manifest.json", f"shard-{rank:05}-of-00002.safetensors"], host, parts)
        check((folder / "shared/checkpoints").is_symlink(), "the run's folder leads to them")
        out = train_on_two_hosts(folder, "--resume", "latest", *settings(train__steps=4), **places)
        check("at step 2" in out[0], out[0])
        tessera("checkpoint", "verify", *(folder / host for host in HOSTS), folder=folder).done()


def replicated_state_is_on_every_host():
    """Each host can be resumed and evaluated from its own folder alone."""
    need_namespaces()
    with scratch() as folder:
        keys = settings(shard__level="replicate", checkpoint__every_steps=2, schedule__name="constant")
        train_on_two_hosts(folder, *keys, *settings(train__steps=2))
        out = train_on_two_hosts(folder, "--resume", "latest", *keys, *settings(train__steps=4))
        check("at step 2" in out[0], out[0])
        for host in HOSTS:
            tessera("checkpoint", "consolidate", folder / host, "-o", f"{host}.safetensors", folder=folder).done()
        weights = {(folder / f"{host}.safetensors").read_bytes() for host in HOSTS}
        check(len(weights) == 1, "each folder has all parameters")
        tessera("checkpoint", "verify", *(folder / host for host in HOSTS), folder=folder).done()


def parts_become_one():
    need_namespaces()
    with scratch() as folder:
        train_on_two_hosts(folder, *settings(train__steps=2))
        parts = [folder / host for host in HOSTS]
        run = tessera("checkpoint", "verify", parts[0], folder=folder)
        check(run.wait() == 2, "a part alone is no sound checkpoint", run.tail())
        check("rank 1 wrote it on host nodeb" in run.text(), run.tail())
        tessera("checkpoint", "verify", *parts, folder=folder).done()
        run = tessera("eval", parts[0], folder=folder)
        check(run.wait() == 2 and "rank 1 wrote it on host nodeb" in run.text(), run.tail())

        shown = json.loads(tessera("checkpoint", "inspect", *parts, "--json", folder=folder).done())
        check([file["host"] for file in shown["files"]] == list(HOSTS), shown["files"])
        check("MISSING: rank 1 wrote it on host nodeb" in
              tessera("checkpoint", "inspect", parts[0], folder=folder).done(), "inspect of a part")

        tessera("checkpoint", "consolidate", *parts, "-o", "a.safetensors", "--with-optimizer", folder=folder).done()
        tessera("checkpoint", "reshard", *parts, "-o", "one/checkpoints", "--ranks", "3", folder=folder).done()
        tessera("checkpoint", "consolidate", "one", "-o", "b.safetensors", "--with-optimizer", folder=folder).done()
        check((folder / "a.safetensors").read_bytes() == (folder / "b.safetensors").read_bytes(), "the same bits")
        tessera("eval", "one", folder=folder).done()
        run = tessera("checkpoint", "reshard", "one", "-o", "one/checkpoints", folder=folder)
        check(run.wait() == 2 and "holds the checkpoint that is read; name another folder" in run.text(), run.tail())


if __name__ == "__main__":
    main(each_host_keeps_its_part_and_resumes, only_checkpoints_are_the_hosts_own, replicated_state_is_on_every_host, parts_become_one)
