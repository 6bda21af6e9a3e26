"""tessera bench step and scaling: their numbers fit together, on one rank and on several, in text and in JSON."""
import json

from harness import check, main, scratch, tessera

SMALL = ("--model", "mu", "--batch", 4, "--rounds", 2, "--set", "run.threads=1")


def numbers(found, ranks):
    check(found["ranks"] == ranks and found["batch_per_rank"] == 4 and found["global_batch"] == 4 * ranks, found)
    check(len(found["step_seconds_all"]) == 2 and found["step_seconds"] > 0, found)
    rate = found["global_batch"] / found["step_seconds"]
    check(abs(found["images_per_second"] / rate - 1) < 1e-6, found)
    check(0 < found["tflops"] < found["gemm_tflops"] * 1.5 and found["peak_rss_bytes"] > 2**26, found)
    check(found["share_of_peak"] < 1 if "share_of_peak" in found else True, found)
    kinds = found["seconds_by_kind"]
    check(kinds["gemm_forward"] > 0 and kinds["attention"] > 0 and kinds["optimizer"] > 0 and kinds["norm"] > 0, kinds)
    check((kinds["waiting_for_ranks"] > 0) == (ranks > 1), kinds)


def step_on_one_rank_and_on_two():
    with scratch() as folder:
        for ranks in (1, 2):
            words = ("bench", "step", *SMALL, "--procs", ranks, "--output", folder / "step.json")
            text = tessera(*words, "--json", folder=folder).done(120)
            numbers(json.loads((folder / "step.json").read_text()), ranks)
            check('"images_per_second"' in text, text)
        text = tessera("bench", "step", *SMALL, "--dtype", "fp32", "--recompute", folder=folder).done(120)
        for part in ("whole step", "TFLOP/s", "peak memory", "gemm_forward", "fp32", "recompute"):
            check(part in text, part, "in", text)


def scaling_is_a_table():
    with scratch() as folder:
        words = ("bench", "scaling", "--model", "mu", "--batch", 4, "--rounds", 1, "--ranks", "1,2")
        rows = json.loads(tessera(*words, "--json", folder=folder).done(120))
        check([row["global_batch"] for row in rows] == [4, 8] and rows[0]["efficiency"] == 1, rows)
        rows = json.loads(tessera(*words, "--strong", "--json", folder=folder).done(120))
        check([row["batch_per_rank"] for row in rows] == [4, 2], rows)
        text = tessera(*words, folder=folder).done(120)
        check(len(text.strip().splitlines()) == 3 and "efficiency" in text, text)


main(step_on_one_rank_and_on_two, scaling_is_a_table)
