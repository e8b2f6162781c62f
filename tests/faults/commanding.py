"""The command, with a GPU that can fail and a clock that jumps: `commanding.py WORDS...`.

On SIGUSR1 the wall clock jumps by as many seconds as the file says that the variable `CLOCK_JUMP` names.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE), str(HERE.parent / "executors"), str(HERE.parents[1])]

from mctskernel.cli import main  # noqa: E402 - found through the path above

if __name__ == "__main__":
    wall_clock, jumped = time.time, [0.0]

    def jump(*_: object) -> None:
        jumped[0] += float(Path(os.environ["CLOCK_JUMP"]).read_text())

    signal.signal(signal.SIGUSR1, jump)
    time.time = lambda: wall_clock() + jumped[0]

    if "CUDA_FAULT" in os.environ:
        from mctskernel.executors.gpu import GpuExecutor
        from mctskernel.profiling.gpu import choice

        choice.visible_gpus = lambda: (choice.VisibleGpu(0, "Fake GPU", "00", "sm_90", 80 << 30),)
        (GpuExecutor.__init__.__kwdefaults__ or {})["service"] = "faulty_gpu:FaultyGpu"
    main()
