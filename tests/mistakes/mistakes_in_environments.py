"""Mistakes around the command: variables, permissions, a full disk, launchers."""

from mistake import SHORT, Mistake

CLASSIFY = f"python recipes/classify.py --data.train reviews.csv {SHORT} --rehearse false"


def wrong(
    command: str, *says: str, before: str = "", then: str | None = None, mend: dict[str, str] | None = None
) -> Mistake:
    """Return a mistake in the environment."""
    return Mistake(command, says, mend or {}, then, before, "")


def lacking(package: str) -> str:
    """Return what makes a folder `without`; on PYTHONPATH it stands for a Python that does not have this package."""
    error = f"raise ModuleNotFoundError('No module named {package}', name='{package}')"
    # Read-only: the interpreter would keep what it makes of the module beside it.
    return f'mkdir without && echo "{error}" > without/{package}.py && chmod 555 without'


MISTAKES = (
    # Packages that are not installed.
    wrong(
        "PYTHONPATH=without toolkit report runs/reviews",
        "a report needs the package vl_convert, which is not installed; install it with pip install -e '.[report]'",
        before=lacking("vl_convert"),
        then="toolkit report runs/reviews",
    ),
    wrong(
        f"PYTHONPATH=without python recipes/tag.py --data.train words.conll {SHORT} --rehearse false",
        "entity F1 needs the package seqeval, which is not installed; install it with pip install -e '.[tag]'",
        before=lacking("seqeval"),
        then=f"python recipes/tag.py --data.train words.conll {SHORT} --rehearse false",
    ),
    # Where things are written.
    wrong(
        f"{CLASSIFY} --output shut",
        "can't be written (Permission denied); give another one",
        before="mkdir -m 555 shut",
    ),
    wrong(f"{CLASSIFY} --output shut/a", "can't be written (Permission denied)", before="mkdir -m 555 shut"),
    wrong(f"{CLASSIFY} --output /proc/run", "can't be written", "give another one with --output"),
    wrong(
        "toolkit predict runs/reviews unlabelled.csv --output shut/out.csv",
        "the folder shut can't be written (Permission denied)",
        before="mkdir -m 555 shut",
    ),
    wrong(
        "toolkit export runs/reviews --step 4",
        "can't be written (Permission denied)",
        before="chmod 555 runs/reviews",
        then="toolkit status runs/reviews",
    ),
    wrong(
        f"FINETUNE_TOOLKIT_CACHE=/proc/nothing {CLASSIFY}",
        "the cache folder /proc/nothing cannot be written",
        "set the environment variable FINETUNE_TOOLKIT_CACHE to a folder that can",
        then=f"FINETUNE_TOOLKIT_CACHE=cache {CLASSIFY}",
    ),
    wrong(f"FINETUNE_TOOLKIT_CACHE=reviews.csv {CLASSIFY}", "cannot be written (File exists)"),
    wrong(
        f"ulimit -f 8; {CLASSIFY.replace(' --rehearse false', '')}",
        "(File too large); ",
        then=CLASSIFY.replace(" --rehearse false", ""),
    ),
    wrong(
        "ulimit -f 10; toolkit export runs/reviews --step 4",
        "can't be written (File too large); make room or repair it",
        then="toolkit export runs/reviews --step 4",
    ),
    wrong(f"{CLASSIFY} > /dev/full", "what is printed can't be written where it goes (No space left", then=CLASSIFY),
    wrong(
        "toolkit status runs/reviews > /dev/full",
        "what is printed can't be written where it goes (No space left",
        then="toolkit status runs/reviews",
    ),
    wrong(
        f"LC_ALL=C PYTHONIOENCODING=ascii {CLASSIFY} --data.label größe",
        r"data.label is 'gr\xf6\xdfe', but the data has the columns 'text', 'label'",
    ),
    # What a launcher sets.
    wrong(f"WORLD_SIZE=2 {CLASSIFY}", "MASTER_ADDR, where the processes meet, is not set", then=CLASSIFY),
    wrong(f"WORLD_SIZE=two RANK=0 {CLASSIFY}", "WORLD_SIZE is two; it must be a whole number", then=CLASSIFY),
    wrong(f"WORLD_SIZE=2 RANK=2 {CLASSIFY}", "processes are numbered from 0 to 1", then=CLASSIFY),
    wrong(f"RANK=1 {CLASSIFY}", "RANK is 1, and WORLD_SIZE is not set", "unset RANK", then=CLASSIFY),
    wrong(f"RANK=zero {CLASSIFY}", "RANK is zero; it must be a whole number", then=CLASSIFY),
    wrong(f"LOCAL_RANK=0 {CLASSIFY}", "MASTER_ADDR, where the processes meet, is not set", then=CLASSIFY),
    wrong(
        "LOCAL_RANK=0 toolkit predict runs/reviews unlabelled.csv --output a.csv", "LOCAL_RANK is 0, but MASTER_ADDR"
    ),
    wrong(f"WORLD_SIZE=2 RANK=0 MASTER_ADDR=localhost {CLASSIFY}", "MASTER_PORT is not set; it must be a whole number"),
    wrong(f"WORLD_SIZE=2 RANK=0 MASTER_ADDR=localhost MASTER_PORT=a {CLASSIFY}", "MASTER_PORT is a; it must be"),
    wrong(
        f"WORLD_SIZE=2 RANK=0 MASTER_ADDR=localhost MASTER_PORT=29561 {CLASSIFY} --timeout.rendezvous 1",
        "1 of 2 processes did not come to localhost:29561 within 1 s: process 1",
    ),
    # What a launch file sets.
    wrong(f"ACCELERATE_MIXED_PRECISION=fp16 {CLASSIFY}", "needs an accelerator; on CPU use bf16 or no"),
    wrong(f"ACCELERATE_MIXED_PRECISION=fp8 {CLASSIFY}", "use bf16, fp16 or no"),
    wrong(f"ACCELERATE_USE_DEEPSPEED=true {CLASSIFY}", "asks for DeepSpeed", "start it with `accelerate launch`"),
    wrong(f"ACCELERATE_USE_FSDP=true FSDP_VERSION=2 {CLASSIFY}", "no launcher started this one", then=CLASSIFY),
    wrong(f"ACCELERATE_DYNAMO_BACKEND=inductor {CLASSIFY}", "leave dynamo_backend and dynamo_config out"),
    wrong(
        f"{CLASSIFY} --batch.stages 2",
        "batch.stages is 2, and 1 process was started",
        "--num_processes 2, or leave batch.stages out",
        then=CLASSIFY,
    ),
    wrong(
        f"{CLASSIFY} --batch.stages 2 --batch.micro auto --batch.compress bf16",
        "batch.micro is auto and batch.stages is 2",
        "a pipeline sends no gradients of weights",
    ),
    wrong(f"ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4 {CLASSIFY}", "remove it there, the toolkit derives it"),
    wrong(
        f"ACCELERATE_USE_CPU=true {CLASSIFY} --model.device_map balanced --batch.micro auto",
        "takes several GPUs, and the launch configuration asks for the CPU; leave one of them out",
        "batch.micro is auto: what fits is tried on one GPU alone",
        then=CLASSIFY,
    ),
    # Launchers.
    Mistake(
        "accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes 1 recipes/classify.py "
        "--data.trian reviews.csv",
        ("--data.trian reviews.csv is unknown; did you mean --data.train?",),
        launched=True,
    ),
    Mistake(
        "accelerate launch --cpu --num_processes 2 recipes/classify.py --data.train reviews.csv",
        (
            "`accelerate launch` was asked for 2 processes, but started 1",
            "`accelerate launch --config_file accelerate_configs/cpu.yaml --num_processes 2`",
        ),
        launched=True,
    ),
)
