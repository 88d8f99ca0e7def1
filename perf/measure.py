"""What the scripts beside it share: runs perf_ablation, reads a run's metrics, saves pictures."""
import json
import os
import pathlib
import subprocess
import sys


def quiet_environment(**more):
    """Environment of ranks that share cores: idle threads and waiting ranks leave them to others."""
    return dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_WAIT_POLICY="passive",
                OMPI_MCA_mpi_yield_when_idle="1", OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none", **more)


def measure(program, ranks, arguments):
    """What perf_ablation found, as its last line says."""
    done = subprocess.run(["mpirun", "-n", str(ranks), program, *arguments], env=quiet_environment(OMP_NUM_THREADS="1"),
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{program} {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def steps_of(run):
    """The records of the steps of a run, in order, from metrics.jsonl in its directory."""
    records = [json.loads(line) for line in (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if "loss" in record]


def save_picture(picture, draw, *data):
    """Writes to `picture` the figure that draw(pyplot, *data) makes, if matplotlib is there."""
    try:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no picture: python3-matplotlib is not installed")
        return
    figure = draw(plt, *data)
    figure.tight_layout()
    figure.savefig(picture, dpi=120)
    print(f"wrote {picture}")
