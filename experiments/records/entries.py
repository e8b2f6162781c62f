"""Which results there are: the JSON of each, what renders its tables and plots, and what to know of it.

To add one, write its JSON by `records.provenance.write_result` into docs/results, enter it here, and run
`python -m mctskernel.experiments.results --write`.
"""

from __future__ import annotations

from mctskernel.campaign.report import Report as Campaign
from mctskernel.campaign.report import markdown as campaign_page
from mctskernel.experiments import (
    campaign_allocation,
    fairness,
    reward_value,
    strategy_report,
)
from mctskernel.experiments.counter_evidence import Report as CounterEvidence
from mctskernel.experiments.counters.tables import document as counter_evidence
from mctskernel.experiments.records.documents import markdown
from mctskernel.experiments.records.engine_entries import ENGINE_ENTRIES
from mctskernel.experiments.records.entry import Entry, Group
from mctskernel.experiments.records.provenance import Rows
from mctskernel.experiments.records.renderers import (
    of_ablation,
    of_gauntlet,
    of_races,
    of_suite,
    of_surrogate_study,
    page,
    rendered_from,
    rules_page,
    strategies_plot,
)
from mctskernel.experiments.suites import ratios
from mctskernel.experiments.suites.plain_report import render as plain_suite_page
from mctskernel.experiments.suites.plain_trials import PlainSuite

ENTRIES: tuple[Entry, ...] = (
    Entry(
        "suite_h100.json",
        Group.SEARCHES,
        "Made in five calls with `--tasks`, whose rows were put together; `--seconds` was 55 to 60 "
        "for CUDA C++, 50 for the Triton softmax, rmsnorm, layernorm, transpose and bias_gelu, 26 to "
        "30 for the rest; the Triton stencil and spmv were chosen through a disturbed baseline run.",
        of_suite("suite_h100"),
    ),
    Entry(
        "suite_short_h100.json",
        Group.SEARCHES,
        "15 to 20 s a search instead of a minute, one language a task; fp32 matmul had no time left. Eleven other "
        "processes had the idle cores, so Triton's builds took longer than they would alone.",
        of_suite("suite_short_h100"),
    ),
    Entry(
        "suite_ratios_h100.json",
        Group.SEARCHES,
        "The winners of `suite_short_h100.json`, and of a search of the Triton fp32 matmul of 18 s, on another H100 "
        "than they were found on; in two calls, with nothing else running. Targets on the memory-bound tasks: 1.3 over "
        "eager (2.698) and 1.0 over torch.compile (1.256), met; without histogram, for which PyTorch has a slow "
        "operator, the latter is 1.042.",
        {
            "suite_ratios_h100.md": rendered_from(
                "suite_ratios_h100.json",
                Rows[ratios.RatioRow],
                lambda each: markdown(ratios.document(each.rows)) + "\n",
            )
        },
    ),
    Entry(
        "rules_h100.json",
        Group.SEARCHES,
        "Tasks that rules were written for since `suite_h100.json` (80 evaluations and 28 s for the "
        "stencil); attention and bf16 matmul are from a second run on another machine of the kind, "
        "after their copies were made cheaper: before, they came to 424.6 and 560.8 us. The earlier "
        "2.79x of int4 matmul in Triton doesn't follow from its two times, whose ratio is 2.3. The "
        "stencil starts at 1.5 times its floor and has arrived at it.",
        {"rules_h100.md": rules_page},
    ),
    Entry(
        "trajectory_matmul_h100.json",
        Group.SEARCHES,
        "`best/trajectory.md` of a row of the suite.",
        page("trajectory_matmul_h100.json"),
    ),
    Entry(
        "strategies_gpu_h100.json",
        Group.SEARCHES,
        "Of `mctskernel search TASK --device gpu --budget 60 --strategy NAME --seed 0`, four tasks in "
        "CUDA C++ and two in Triton; the walk is the one without draws.",
    ),
    Entry(
        "torch_starts_h100.json",
        Group.SEARCHES,
        "What torch.compile generates, as a starting point; "
        "[starting_points.md](../starting_points.md) says how far rope and cumsum can be believed.",
    ),
    Entry(
        "counter_evidence_h100.json",
        Group.SEARCHES,
        "Steps of the runs behind `suite_h100.json`, `strategies_gpu_h100.json` and `torch_starts_h100.json`, "
        "of four more, all on an H100, and of `families_h100/`; weighed on the machine that is named. "
        "[evidence.md](../evidence.md).",
        {
            "counter_evidence_h100.md": rendered_from(
                "counter_evidence_h100.json",
                CounterEvidence,
                lambda each: markdown(counter_evidence(each)) + "\n",
            )
        },
        ("counter_evidence_h100_steps.jsonl.xz",),
    ),
    Entry(
        "reward_value_h100.json",
        Group.SEARCHES,
        "Those of the runs of `counter_evidence_h100.json` that have 40 kernels. [evidence.md](../evidence.md).",
        {
            "reward_value_h100.md": rendered_from(
                "reward_value_h100.json",
                reward_value.Report,
                lambda each: markdown(reward_value.document(each)) + "\n",
            )
        },
    ),
    Entry("evaluator_cost_h100.json", Group.EVALUATOR, "One variant by the usual route."),
    Entry(
        "evaluator_cost_accounted_h100.json",
        Group.EVALUATOR,
        "With every timed run accounted for, and without the usual route beside it.",
    ),
    Entry("timing_precision_h100.json", Group.EVALUATOR),
    Entry("timing_precision_predicting_h100.json", Group.EVALUATOR, "While 16 processes predict."),
    Entry(
        "fairness_h200.json",
        Group.EVALUATOR,
        "Two GPUs of one machine, between which there is nothing to take out.",
        {"fairness_h200.md": rendered_from("fairness_h200.json", fairness.Report, fairness.page)},
    ),
    Entry("calibration_h100.json", Group.EVALUATOR, "`calibrations.json` of two calibrations in a row."),
    Entry(
        "cupti_against_ncu_h100.json",
        Group.EVALUATOR,
        "Values as measured; the rule that compares stalls as a share of all stalls was applied afterwards.",
    ),
    Entry(
        "emulator_against_h100.json",
        Group.EVALUATOR,
        "Cross entropy, spmv and layernorm have other starting kernels since.",
    ),
    Entry(
        "families_h100/provenance.json",
        Group.MODEL,
        "Nine families, 450 kernels with times and counters.",
    ),
    Entry(
        "families_h200/provenance.json",
        Group.MODEL,
        "Six of the nine families, 299 kernels with times and counters, in a minute and a half.",
    ),
    Entry(
        "model_h100.json",
        Group.MODEL,
        "289 variants of five families with their H100 times. Most shipped constants are a "
        "calibration's; those of the model itself (norms, the shares of caches) were chosen in sight "
        'of these families, and the columns "fitted on all others" and "fitted on 2" were not. The '
        "machine was busy with other things: alone a kernel takes 0.10 s at the median.",
        page("model_h100.json"),
    ),
    Entry(
        "model_own_families_h100.json",
        Group.MODEL,
        "Of the model and the constants as they stood before these families were measured, with the "
        "Triton that made the measured code.",
        page("model_own_families_h100.json"),
    ),
    Entry(
        "surrogate_study_h100.json",
        Group.MODEL,
        "H100_VARIANTS are the kernels of `model_h100.json`, in whose sight the model's own constants were "
        "chosen. Priced with the Triton that made the measured code, on a machine that was busy with other "
        "things, so the seconds of a prediction are too many; [surrogate.md](../surrogate.md).",
        of_surrogate_study("surrogate_study_h100"),
    ),
    Entry(
        "surrogate_study_h200.json",
        Group.MODEL,
        "The six families of `families_h200/`, priced with the Triton that made the measured code, on a machine that "
        "was busy with other things, so the seconds of a prediction are too many; [surrogate.md](../surrogate.md).",
        of_surrogate_study("surrogate_study_h200"),
    ),
    Entry(
        "model_recorded_h100.json",
        Group.MODEL,
        "Folders that `mctskernel record --from-run RUN` made of the suite's runs on an H100, 60 "
        "kernels each, every fourth priced, with the Triton that made the measured code (with 3.7.1 "
        "int4_matmul in Triton falls from 0.95 to 0.37, because the code is another). The constants "
        "were not fitted on them, but nine of them showed which mechanisms were missing: rows' "
        "weights in L1, uneven sparse rows, waits between barriers, atomics that share a line (the "
        "one constant that comes from there). The two histograms were priced again after that, the "
        "rest just before. All of it with the constants of before the calibration; with those of "
        "after it, and atomics and spills as they are counted now, every twelfth kernel (158, five a "
        "family) gives 0.953, 1.006 and 1.000 at the mean.",
        page("model_recorded_h100.json"),
    ),
    Entry(
        "strategies.json",
        Group.STRATEGIES,
        "[strategies.md](../strategies.md) says how. The head of `strategies.md` has the code's "
        "digest; Kernel Tuner 1.5.0 by `kernel_tuner_baseline FOLDER --seeds 30 --out FILE`.",
        {
            "strategies.md": lambda folder: strategy_report.markdown_report(
                strategy_report.read_report(folder)
            ).encode(),
            "strategies.svg": strategies_plot,
        },
        ("strategies_traces.jsonl.xz",),
    ),
    Entry(
        "ablation_search.json",
        Group.STRATEGIES,
        "The four recorded spaces of [strategies.md](../strategies.md), in the folder `spaces`, and five made-up ones, "
        "20 seeds; seconds are a core's. [ablations.md](../ablations.md).",
        of_ablation("ablation_search"),
    ),
    Entry(
        "ablation_selection.json",
        Group.STRATEGIES,
        "The same four recorded spaces, 20 seeds; the walk with one choice changed at a time.",
        of_ablation("ablation_selection"),
    ),
    Entry(
        "ablation_budget.json",
        Group.STRATEGIES,
        "The same four recorded spaces, 20 seeds, looked at after 12 to 200 evaluations.",
        of_ablation("ablation_budget"),
    ),
    Entry(
        "ablation_search_model.json",
        Group.STRATEGIES,
        "As sixty sweeps of a task and two seeds each beside each other, put together, so that arms share evaluations; "
        "softmax and layernorm with seeds 17 and 19 on another machine, with NVRTC 13.5. "
        "[ablations.md](../ablations.md).",
        of_ablation("ablation_search_model"),
    ),
    Entry(
        "ablation_reward_model.json",
        Group.STRATEGIES,
        "As sweeps of a task and two seeds each, put together; seeds 0 to 3 (sum to 4, histogram to 2) on the machine "
        "that is named, the others on one with NVRTC 13.5. [ablations.md](../ablations.md).",
        of_ablation("ablation_reward_model"),
    ),
    Entry(
        "campaign_allocation.json",
        Group.STRATEGIES,
        "Of the searches of `strategies_traces.jsonl.xz`: nothing is searched again. [campaign.md](../campaign.md).",
        {
            "campaign_allocation.md": rendered_from(
                "campaign_allocation.json",
                campaign_allocation.Report,
                lambda each: markdown(campaign_allocation.document(each)) + "\n",
            )
        },
    ),
    Entry(
        "plain_suite_model.json",
        Group.STRATEGIES,
        "One seed and a small budget: it shows what the rules find, and compares no strategies. Made in parts with "
        "`--tasks`: cumsum, embedding, gelu, gemv, histogram, layernorm, matmul, max_pool, n_body, nearest_centre, "
        "sobel, spmv, stencil1d, stencil3d, sum and vector_add on a machine with NVRTC 13.0, the others on the one "
        "that is named. Both were busy with other things, so the seconds are too many; "
        "[plain_suite.md](../plain_suite.md).",
        {"plain_suite_model.md": rendered_from("plain_suite_model.json", PlainSuite, plain_suite_page)},
    ),
    Entry(
        "plain_suite_h200.json",
        Group.STRATEGIES,
        "One seed: with 28 kernels it says what searches bring, and little of a few per cent between strategies. Four "
        "processes made a part of the trials on a GPU each (`--tasks`, `--arms mcts,greedy,best-of-n`, "
        "`--minutes 5.3`), three kernels came from another host of the kind; the command put their trials together. "
        "[plain_suite.md](../plain_suite.md).",
        {"plain_suite_h200.md": rendered_from("plain_suite_h200.json", PlainSuite, plain_suite_page)},
    ),
    Entry(
        "campaign_model.json",
        Group.STRATEGIES,
        "One campaign, kept by `python -m mctskernel.experiments.keep_campaign`; the machine was busy with other "
        "things, so the seconds are too many. [campaign.md](../campaign.md).",
        {"campaign_model.md": rendered_from("campaign_model.json", Campaign, campaign_page)},
    ),
    Entry(
        "campaign_h200.json",
        Group.STRATEGIES,
        "`docs/examples/campaign_block.toml` with device gpu and 120 evaluations, on four GPUs. "
        "[campaign.md](../campaign.md).",
        {"campaign_h200.md": rendered_from("campaign_h200.json", Campaign, campaign_page)},
    ),
    Entry(
        "gauntlet_model.json",
        Group.TRUST,
        "CUDA C++ and Triton; a round of fuzzing and a browser ran beside it, so the seconds are too many.",
        of_gauntlet("gauntlet_model"),
    ),
    Entry(
        "gauntlet_h100.json",
        Group.TRUST,
        "Six processes had a part of the entries each and took turns at the GPU; put together; 21 "
        "entries on another machine of the kind a little later. Seconds hold waiting for a turn. Five "
        "honest kernels that came later still are not in it.",
        of_gauntlet("gauntlet_h100"),
    ),
    Entry("module_gauntlet_cpu.json", Group.TRUST),
    Entry(
        "module_gauntlet_h100.json",
        Group.TRUST,
        "As four processes with a part of the names each (`--only`); put together.",
    ),
    Entry(
        "races_model.json",
        Group.TRUST,
        "[races.md](../races.md) tells what is planted and what no tool finds.",
        of_races("races_model"),
    ),
    Entry("races_h100.json", Group.TRUST, "", of_races("races_h100")),
    Entry(
        "faults.json",
        Group.TRUST,
        "The machine was busy with other things, so the pauses are too long.",
    ),
    Entry(
        "fuzzing.json",
        Group.TRUST,
        "62 000 inputs in ten rounds; its four defects (PTX without operands, and three complaints "
        "that quoted too much of a long input) are mended since; [fuzzing.md](../fuzzing.md).",
    ),
    *ENGINE_ENTRIES,
)
