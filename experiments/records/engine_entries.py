"""The results about the engine: trees, servers, many GPUs."""

from __future__ import annotations

from mctskernel.experiments import counter_cost, scaling, serving_load, tree_scale
from mctskernel.experiments.records.entry import Entry, Group
from mctskernel.experiments.records.renderers import plotted, rendered_from

ENGINE_ENTRIES: tuple[Entry, ...] = (
    Entry(
        "serving_load.json",
        Group.ENGINE,
        "The machine was busy with other things, so rates are too low and waits too long. An earlier run lost "
        "the 125 kernels of one client, whose task was blamed for a process that was killed as it opened, and "
        "showed 40 ms in each answer for want of TCP_NODELAY: both are mended. [remote_gpu.md](../remote_gpu.md).",
        {"serving_load.md": rendered_from("serving_load.json", serving_load.Report, serving_load.page)},
    ),
    Entry(
        "serving_flat.json",
        Group.ENGINE,
        "What the server's memory grows by are the keys that it remembers so as to judge nothing twice, up to "
        "10 000 of a session.",
        {"serving_flat.md": rendered_from("serving_flat.json", serving_load.Report, serving_load.page)},
    ),
    Entry(
        "report_cost.json",
        Group.ENGINE,
        "RUN is a search of softmax on an H100, 60 nodes; medians of five openings. Targets: the "
        "report of 1 000 nodes under 8 MB (4.8) and open in under 3 s (3.06, just missed; 2.0 of them "
        "of the main thread); 10 000 nodes loaded in under 1 s (0.56) and the tree of the widget "
        "drawn in under 2 s (4.9, missed). On this machine 1.4 to 1.9 s of each go to reading "
        "plotly.js, before anything is drawn.",
    ),
    Entry(
        "scaling_h200.json",
        Group.ENGINE,
        "`ray` and the searches are from a second call, with `--engines ray --counters few --rounds 3 --searches 2 "
        "--budget 40`. Targets: 2 GPUs at least 1.9 times one (2.02 `ray`; 1.81 `local`, and 1.94 in each of the two "
        "tables below), Ray at most 20 ms an evaluation (14). Counters are what GPUs wait for each other over: "
        "[many_gpus.md](../many_gpus.md).",
        {"scaling_h200.md": rendered_from("scaling_h200.json", scaling.Report, scaling.page)},
    ),
    Entry(
        "scaling_rounds_h200.json",
        Group.ENGINE,
        "With half as many evaluations again, on another host of four GPUs. [many_gpus.md](../many_gpus.md).",
        {"scaling_rounds_h200.md": rendered_from("scaling_rounds_h200.json", scaling.Report, scaling.page)},
    ),
    Entry(
        "scaling_two_h200.json",
        Group.ENGINE,
        "With three times as many evaluations, on a host of two GPUs. [many_gpus.md](../many_gpus.md).",
        {"scaling_two_h200.md": rendered_from("scaling_two_h200.json", scaling.Report, scaling.page)},
    ),
    Entry(
        "counter_cost_h200.json",
        Group.ENGINE,
        "Why several GPUs read few counters: the driver counts for one at a time. [many_gpus.md](../many_gpus.md).",
        {
            "counter_cost_h200.md": rendered_from(
                "counter_cost_h200.json", counter_cost.Report, counter_cost.page
            )
        },
    ),
    Entry(
        "ray_overhead.json",
        Group.ENGINE,
        "Milliseconds from a kernel that is submitted to its evaluation, on a device that takes no time; seven other "
        "programs ran beside it. Target: Ray adds at most 20 ms (1.8). [many_gpus.md](../many_gpus.md).",
    ),
    Entry(
        "tree_scale.json",
        Group.ENGINE,
        'Alone on the machine. At 100 000 nodes an iteration of "uct, mean" takes 0.173 ms and its '
        'replay 2.7 s, which meets the targets of 0.2 ms and 3 s; "puct, max", whose tree is twenty '
        "times as deep, takes 0.43 ms and 4.8 s and doesn't. 1161 and 1236 bytes a node.",
        {"tree_scale.svg": plotted("tree_scale.json", tree_scale.Report, tree_scale.draw)},
    ),
)
