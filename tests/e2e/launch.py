# SPDX-License-Identifier: Apache-2.0
"""`tessera launch`: local ranks of a program that is not Tessera."""
import re
import signal
import time

from harness import check, main, scratch, tessera


def starts_ranks_of_any_program():
    with scratch() as folder:
        script = 'echo "$TESSERA_RANK of $TESSERA_WORLD_SIZE: $0" >said-$TESSERA_RANK; echo hello'
        text = tessera("launch", "--procs", 3, "sh", "-c", script, "an argument", folder=folder).done()
        check(text.endswith("hello\n") and text.count("hello") == 1, "only rank 0 speaks on the console:", text)
        for rank in range(3):
            check((folder / f"said-{rank}").read_text() == f"{rank} of 3: an argument\n", rank)


def a_failing_rank_ends_all():
    with scratch() as folder:
        run = tessera("launch", "--procs", 2, "--logs", folder / "logs", "--", "sh", "-c",
                      '[ $TESSERA_RANK = 0 ] && exec sleep 60; echo last words; exit 7', folder=folder)
        check(run.wait(20) == 7, "the failing rank's exit code was expected" + run.tail())
        check(re.search(r"rank 1 of 2 .*exit code 7.*last words", run.text()), run.text())
        run.check_nothing_left()


def signals_reach_the_ranks():
    with scratch() as folder:
        run = tessera("launch", "--procs", 2, "sh", "-c", 'touch begun-$TESSERA_RANK; exec sleep 60', folder=folder)
        run.wait_for(lambda: len(list(folder.glob("begun-*"))) == 2, "two ranks")
        time.sleep(0.1)
        run.process.send_signal(signal.SIGTERM)
        check(run.wait(10) != 0, "a program without handlers ends by the signal")
        run.check_nothing_left()


def words_of_refusal():
    with scratch() as folder:
        for words, pattern in ((["launch"], r"\[launch\] no program to start is given"),
                               (["launch", "--procs", 2, "no-such-program"],
                                r"\[launch\.local\] cannot start rank 0 of 2: running no-such-program failed: No such file"),
                               (["launch", "--procs", 0, "true"], r"\[launch\.local\] --procs is 0: expected 1 to 4096 local ranks")):
            run = tessera(*words, folder=folder)
            check(run.wait(10) == 2, words, run.tail())
            check(re.search(pattern, run.text()), pattern, run.text())


main(starts_ranks_of_any_program, a_failing_rank_ends_all, signals_reach_the_ranks, words_of_refusal)
