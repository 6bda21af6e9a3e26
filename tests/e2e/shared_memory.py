# SPDX-License-Identifier: Apache-2.0
"""Ranks of one host that may not share memory talk through TCP, say so in one line, and train the same numbers."""
import os
import shutil

from harness import PROGRAM, Run, Skip, check, free_port, losses, main, scratch, settings, summary, tiny_recipe, train

NOBODY = 65534


def become(uid):
    """What is done between fork and exec: files that both ranks may write, and another user."""
    def change():
        os.umask(0)
        if os.geteuid() == 0 and uid != 0:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
    return change


def run_two(folder, name, programs, uids):
    """Rank r is programs[r] of the user uids[r]; returns rank 0's output."""
    recipe = tiny_recipe(folder)
    port = free_port()
    words = ["train", recipe, "--set", f"run.dir={folder}/{name}", *settings(run__timeout=60)]
    runs = []
    try:
        for rank in (0, 1):
            place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "XDG_CACHE_HOME": str(folder / "cache")}
            runs.append(Run([programs[rank], *words], folder, place, preexec_fn=become(uids[rank])))
        for run in runs:
            run.done()
        return runs[0].text()
    finally:
        for run in runs:
            run.kill()


def check_transport(folder, name, text, transport, expected):
    lines = [line for line in text.splitlines() if "transport between ranks" in line]
    check(lines == [f"  transport between ranks: {transport}"], "one line says it:", text)
    check(summary(folder / name)["transport"] == transport, summary(folder / name))
    check(losses(folder / name) == expected, "other losses", losses(folder / name), expected)


def opened_to_all(folder):
    folder.chmod(0o777)
    own = os.path.dirname(PROGRAM)
    while own != "/":
        if not os.stat(own).st_mode & 0o005 == 0o005:
            raise Skip(f"another user cannot reach {own}")
        own = os.path.dirname(own)


def unreadable_program(folder):
    """A copy that may be run and not read: the kernel lets nobody but root look into its processes."""
    (folder / "bin").mkdir(mode=0o755)
    (folder / "lib").symlink_to(os.path.realpath(os.path.join(os.path.dirname(PROGRAM), "..", "lib")))
    copy = folder / "bin/tessera"
    shutil.copy(PROGRAM, copy)
    copy.chmod(0o111)
    return copy


def processes_that_may_not_be_looked_into():
    """/proc/PID/fd of rank 0 is forbidden to rank 1, of the same user."""
    with scratch() as folder:
        user = NOBODY if os.geteuid() == 0 else os.geteuid()
        opened_to_all(folder)
        text = run_two(folder, "shared", (PROGRAM, PROGRAM), (user, user))
        expected = losses(folder / "shared")
        check_transport(folder, "shared", text, "shared memory", expected)
        hidden = unreadable_program(folder)
        for name, programs in (("first", (hidden, PROGRAM)), ("second", (PROGRAM, hidden)), ("both", (hidden, hidden))):
            text = run_two(folder, name, programs, (user, user))
            check_transport(folder, name, text, "TCP", expected)


def ranks_of_two_users():
    if os.geteuid() != 0:
        raise Skip("starting ranks as another user needs root")
    with scratch() as folder:
        opened_to_all(folder)
        train(folder, "--procs", 2).done()
        text = run_two(folder, "users", (PROGRAM, PROGRAM), (0, NOBODY))
        check_transport(folder, "users", text, "TCP", losses(folder / "run"))


def told_to():
    """run.shared_memory = false is the same path."""
    with scratch() as folder:
        shared = train(folder, "--procs", 2).done()
        check_transport(folder, "run", shared, "shared memory", losses(folder / "run"))
        text = train(folder, "--procs", 2, *settings(run__shared_memory="false"), run="tcp").done()
        check_transport(folder, "tcp", text, "TCP", losses(folder / "run"))


if __name__ == "__main__":
    main(processes_that_may_not_be_looked_into, ranks_of_two_users, told_to)
