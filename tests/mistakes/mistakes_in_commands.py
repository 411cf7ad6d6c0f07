"""Mistakes with the command `toolkit`, and with run folders."""

from mistake import Mistake

PREDICT = "toolkit predict runs/reviews unlabelled.csv"
RUN = (
    "python recipes/classify.py --data.train reviews.csv --model.name models/encoder --threads 1 --epochs null "
    "--steps 6 --batch.size 8 --checkpoint.every 3 --output runs/reviews"
)


def wrong(
    command: str,
    *says: str,
    before: str = "",
    mend: dict[str, str] | None = None,
    then: str | None = None,
    outcome: int = 0,
) -> Mistake:
    """Return a mistake with a command, which the command itself shows to be mended."""
    return Mistake(command, says, mend or {}, then, before, "", outcome)


MISTAKES = (
    wrong("toolkit", "there is no command; give one of status, verify", "toolkit --help", then="toolkit --help"),
    wrong("toolkit help", "help is no command; did you mean toolkit --help?", then="toolkit --help"),
    wrong("toolkit stauts runs/reviews", "stauts is no command; did you mean", mend={"stauts": "status"}),
    wrong("toolkit train reviews.csv", "a recipe trains: python recipes/classify.py --help"),
    wrong("toolkit evaluate runs/reviews", "a recipe evaluates its run with --evaluate.only"),
    wrong("toolkit infer runs/reviews", "infer is no command; did you mean predict?"),
    # status
    wrong("toolkit status", "RUN is missing; it is written: toolkit status RUN"),
    wrong("toolkit status runs", "runs is no run folder", "there are runs/reviews", mend={"runs": "runs/reviews"}),
    wrong("toolkit status run/reviews", "there is no such folder; did you mean", mend={"run/": "runs/"}),
    wrong("toolkit status reviews", "there is no such folder; did you mean", mend={"reviews": "runs/reviews"}),
    wrong("toolkit status runs/reviews/model", "did you mean runs/reviews, in which it lies?", mend={"/model": ""}),
    wrong("toolkit status runs/reviews/run.json", "did you mean runs/reviews, in which", mend={"/run.json": ""}),
    wrong("toolkit status runs/reviews runs/stopped", "runs/stopped is one word too many", mend={" runs/stopped": ""}),
    wrong("toolkit status runs/reviews --verbose", "--verbose is no argument of toolkit status"),
    wrong(
        "toolkit status runs/reviews",
        "run.json is damaged or empty; toolkit verify runs/reviews says what is left",
        before="truncate -s 20 runs/reviews/run.json",
        then="toolkit verify runs/reviews",
        outcome=1,
    ),
    wrong(
        "toolkit status runs/reviews",
        "its status is 5, and not one of finished, running",
        before="""echo '{"status": 5, "step": "x"}' > runs/reviews/run.json""",
    ),
    # verify
    wrong("toolkit verify", "give either a run folder (toolkit verify RUN) or a recipe"),
    wrong("toolkit verify runs/reveiws", "there is no such folder; did you mean", mend={"reveiws": "reviews"}),
    wrong("toolkit verify recipes/classify.py", "looks like a recipe: toolkit verify --resume recipes/classify.py"),
    wrong("toolkit verify runs/reviews --recipe", "--recipe has no value; write --recipe FILE"),
    wrong(
        "toolkit verify runs/reviews --recipe recipes/clasify.py",
        "does not exist; did you mean",
        mend={"clasify": "classify"},
    ),
    wrong("toolkit verify runs/reviews --steps 5", "--steps goes with --resume only", mend={" --steps 5": ""}),
    wrong("toolkit verify runs/reviews --resume recipes/classify.py", "give either a run folder"),
    wrong("toolkit verify --resume recipes/clasify.py", "there is no recipe recipes/clasify.py; did you mean"),
    wrong("toolkit verify --resume recipes/classify.py --processes 0", "--processes is 0; it must be 1 or greater"),
    wrong(
        "toolkit verify --resume recipes/classify.py --processes two", "--processes is two; it must be a whole number"
    ),
    wrong("toolkit verify --resume recipes/classify.py --steps 1", "--steps is 1; it must be 6 or greater"),
    wrong("toolkit verify --resume recipes/classify.py --output runs/reviews", "is not empty; give a new folder"),
    wrong(
        "toolkit verify --resume recipes/classify.py --data.train reviews.csv",
        "what belongs to the recipe comes after --, such as -- --data.train reviews.csv",
    ),
    wrong("toolkit verify --resume recipes/classify.py -- --steps 9", "--steps and --output go before the --"),
    # compare
    wrong("toolkit compare runs/reviews", "B is missing; it is written: toolkit compare A B"),
    wrong("toolkit compare runs/reviews runs/nothing", "there are runs/reviews, runs/stopped, runs/tags, runs/talk"),
    wrong("toolkit compare reviews reviews", "did you mean runs/reviews?", mend={"reviews": "runs/reviews"}),
    wrong("toolkit compare runs/reviews runs/reviews runs/tags", "is one word too many", mend={" runs/tags": ""}),
    wrong("toolkit compare runs/reviews runs/reviews/model", "in which it lies?", mend={"/model": ""}),
    # export
    wrong("toolkit export", "RUN is missing; it is written: toolkit export RUN"),
    wrong("toolkit export runs/reviews --step 5", "has those of step 4, 6", mend={"5": "4"}),
    wrong("toolkit export runs/reviews --step last", "--step is last; it must be a whole number"),
    wrong("toolkit export runs/reviews last", "last is one word too many", mend={" last": ""}),
    wrong("toolkit export runs/nothing", "there are runs/reviews"),
    wrong("toolkit export runs/reviews/checkpoints/step-000006", "did you mean runs/reviews"),
    wrong("toolkit export runs/reviews --recipe recipes/tag.py", "is one of the recipe classify", "leave --recipe out"),
    wrong(
        "toolkit export runs/reviews",
        "has no checkpoint (checkpoint.keep 0 keeps none of a finished run)",
        before="rm -r runs/reviews/checkpoints",
    ),
    wrong("toolkit export runs/reviews --step 4", "no such file or folder", before="rm reviews.csv"),
    wrong("toolkit export runs/reviews --step 4", "training data", before="echo 'so,good' >> reviews.csv"),
    wrong(
        "toolkit export runs/stopped",
        "can't be read",
        "step 4",
        before="truncate -s 50 runs/stopped/checkpoints/step-000004/weights.safetensors",
    ),
    # report and push
    wrong("toolkit report", "RUN is missing; it is written: toolkit report RUN"),
    wrong("toolkit report run/reviews", "there is no such folder; did you mean", mend={"run/": "runs/"}),
    wrong("toolkit report runs/reviews --html page.html", "--html is no argument of toolkit report"),
    wrong(
        "toolkit report runs/reviews --output runs",
        "which is a folder; name a file in it, such as runs/report.html",
        then="toolkit report runs/reviews --output runs/report.html",
    ),
    wrong("toolkit report runs/reviews runs/tags", "name a file with", mend={"": "--output runs.html"}),
    wrong("toolkit report runs/reviews runs/reviews --output a.html", "a run folder is named twice; name each once"),
    wrong(
        "toolkit report runs/reviews --follow 0",
        "--follow is 0; give 1 second or more",
        then="toolkit report runs/reviews --follow 1",
    ),
    wrong("toolkit track runs/reviews", "no tracker is named", "--to mlflow"),
    wrong(
        "toolkit track runs/reviews --to tensorbord",
        "did you mean tensorboard?",
        mend={"tensorbord": "tensorboard"},
    ),
    wrong(
        "toolkit track run/reviews --to tensorboard", "there is no such folder; did you mean", mend={"run/": "runs/"}
    ),
    wrong("toolkit track runs/reviews --to aim", "install it with pip install aim, or leave aim out"),
    wrong("toolkit track --to tensorboard", "RUN is missing; it is written: toolkit track RUN"),
    wrong("toolkit push runs/reviews", "REPO is missing; it is written: toolkit push RUN_OR_MODEL REPO"),
    wrong("toolkit push runs/reviews 'me/my model'", "HF_HUB_OFFLINE is set", "give owner/name"),
    wrong("toolkit push runs/reviews me/model --token x", "--token is no argument of toolkit push; it takes --help"),
    # predict
    wrong(
        "toolkit predict", "MODEL and FILE and --output are missing; it is written: toolkit predict MODEL FILE --out"
    ),
    wrong(PREDICT, "--output is missing; it is written: toolkit predict MODEL FILE --output OUT"),
    wrong(f"{PREDICT} --output", "--output has no value; write --output OUT"),
    wrong(f"{PREDICT} --output out", "give it one of the endings .csv", then=f"{PREDICT} --output out.csv"),
    wrong(f"{PREDICT} --output unlabelled.csv", "the file that is read; give another name"),
    wrong(f"{PREDICT} --output later.csv", "which exists; give another name, or", mend={"": "--overwrite"}),
    wrong(
        f"{PREDICT} --output runs",
        "which is a folder; give a file, such as runs/out.csv",
        then=f"{PREDICT} --output runs/out.csv",
    ),
    wrong(
        "toolkit predict runs/review unlabelled.csv --output out.csv",
        "and there is no such folder; did you mean",
        mend={"runs/review": "runs/reviews"},
    ),
    wrong(
        "toolkit predict runs unlabelled.csv --output out.csv",
        "is the folder of several runs; name one of them",
        then="toolkit predict runs/reviews unlabelled.csv --output out.csv",
    ),
    wrong(
        "toolkit predict runs/stopped unlabelled.csv --output out.csv",
        "has no saved model yet (its status is preempted); let it finish, or save the best one so far with: toolkit "
        "export runs/stopped",
        then="toolkit export runs/stopped",
    ),
    wrong(
        f"{PREDICT} --output out.csv",
        "has no model any more, which was deleted (its status is finished); save",
        before="rm -r runs/reviews/model",
        then="toolkit export runs/reviews",
    ),
    wrong("toolkit predict models/encoder unlabelled.csv --output out.csv", "it can't be told what models/encoder"),
    wrong(
        "toolkit predict unlabelled.csv runs/reviews --output out.csv",
        "give them the other way round",
        then="toolkit predict runs/reviews unlabelled.csv --output out.csv",
    ),
    wrong(
        "toolkit predict runs/reviews unlabeled.csv --output out.csv",
        "there is no file unlabeled.csv; did you mean",
        mend={"unlabeled": "unlabelled"},
    ),
    wrong(
        "toolkit predict runs/reviews stars.csv --output out.csv",
        "the file has no column 'text'",
        mend={"": "--column text=review"},
    ),
    wrong(
        "toolkit predict runs/reviews stars.csv --output out.csv --column review=text",
        "the file has no column 'text'",
        mend={"review=text": "text=review"},
    ),
    wrong(
        "toolkit predict runs/reviews stars.csv --output out.csv --column text=reviw",
        "the file has no column 'reviw'",
        mend={"text=reviw": "text=review"},
    ),
    wrong("toolkit predict runs/reviews stars.csv --output out.csv --column review", "give PART=COLUMN, such as"),
    wrong(
        "toolkit predict runs/reviews stars.csv --output out.csv --text review",
        "--text is no argument of toolkit predict; did you mean",
        mend={"--text review": "--column text=review"},
    ),
    wrong(f"{PREDICT} --output out.csv --batch_size 8", "did you mean --batch?", mend={"--batch_size": "--batch"}),
    wrong(f"{PREDICT} --output out.csv --batch 0", "--batch is 0; it must be 1 or greater"),
    wrong(f"{PREDICT} --output out.csv --batch many", "--batch is many; it must be a whole number"),
    wrong(f"{PREDICT} --output out.csv --dtype fp16", "it must be one of: float32, bfloat16, float64"),
    wrong(f"{PREDICT} --output out.csv --threshold 2", "--threshold is 2.0; it must be at least 0 and below 1"),
    wrong(f"{PREDICT} --output out.csv --threads 0", "--threads is 0; it must be from 1 to 1,024"),
    wrong(f'{PREDICT} --output out.csv --header "a,b"', "has 1 fields ('text'), but --header has 2 names"),
    wrong(f'{PREDICT} --output out.csv --header "[a, b"', "no whole list; give such as --header"),
    wrong(
        "toolkit predict runs/reviews bare.csv --output out.csv",
        "its first line looks like data, not like the names of the columns",
        before="printf 'It was a dud.\\nIt was a riot.\\n' > bare.csv",
        mend={"": '--header "[text]"'},
    ),
    wrong(
        "toolkit predict runs/reviews lines.txt --output out.csv --header text",
        "--header is given, but lines.txt is a text with a row on each line, which has no header; leave it out",
        before="echo 'It was a dud.' > lines.txt",
        mend={" --header text": ""},
    ),
    wrong(
        "toolkit predict reviews unlabelled.csv --output out.csv",
        "and there is no such folder; did you mean runs/reviews?",
        then="toolkit predict runs/reviews unlabelled.csv --output out.csv",
    ),
    wrong("toolkit predict nobody unlabelled.csv --output out.csv", "MODEL is 'nobody'"),
    wrong(
        "toolkit predict runs/reviews unlabelled.xlsx --output out.csv",
        "there is no file unlabelled.xlsx; did you mean unlabelled.csv?",
        mend={"xlsx": "csv"},
    ),
    wrong("toolkit predict runs/tags unlabelled.csv --output out.csv", "give", mend={"": "--column tokens=text"}),
    wrong("toolkit predict runs/reviews photos --output out.csv", "its columns are 'image'"),
    wrong("toolkit predict runs/reviews u.csv --output out.csv", "u.csv has no rows", before="echo text > u.csv"),
    # chat
    wrong("toolkit chat", "MODEL is missing; it is written: toolkit chat MODEL"),
    wrong("toolkit chat runs/reviews", "has no chat template, so that it can't be talked to"),
    wrong("toolkit chat runs/tallk", "did you mean", mend={"tallk": "talk"}),
    wrong("toolkit chat runs/talk hello", "hello is one word too many", mend={" hello": ""}),
    wrong("toolkit chat runs/talk --temperature hot", "--temperature is hot; it must be a number"),
    wrong(
        "toolkit chat runs/talk --temperature -1 --tokens 0", "it must be 0 or greater", "--tokens is 0; it must be 1"
    ),
    wrong("toolkit chat runs/talk --max_new_tokens 9", "did you mean", mend={"--max_new_tokens": "--tokens"}),
    # Run folders.
    wrong(RUN.replace("--steps 6", "--steps 6 --seed 1"), "belongs to another run", mend={"": "--resume never"}),
    wrong(RUN.replace("size 8", "size 4"), "batch.size was 8 and is now 4", then=RUN),
    wrong(RUN.replace("runs/reviews", "photos"), "holds files that are not those of a run; give another one"),
    wrong(RUN.replace("runs/reviews", "reviews.csv"), "can't be written (it is a file); give another one"),
    wrong(RUN.replace("runs/reviews", "''"), "output is empty; name the run folder"),
    wrong(f"{RUN} --resume true", "give auto, strict, never, or a checkpoint such as", mend={"true": "auto"}),
    wrong(RUN.replace("runs/reviews", "runs/new --resume runs/tags"), "is of a run with other numbers"),
    wrong("python recipes/classify.py --evaluate.only --output runs/nothing", "runs/nothing"),
    wrong("python recipes/tag.py --evaluate.only --output runs/reviews", "runs/reviews"),
)
