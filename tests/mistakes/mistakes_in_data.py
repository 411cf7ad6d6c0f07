"""Mistakes with the data: which file, which columns, and what is in it."""

from mistake import SHORT, Mistake

CLASSIFY = "python recipes/classify.py --data.train"
QUICK = f"{SHORT} --rehearse false"
DROP = {"": "--data.drop_invalid true"}


def wrong(
    command: str, *says: str, before: str = "", mend: dict[str, str] | None = None, then: str | None = None
) -> Mistake:
    """Return a mistake with the data, which a step of training shows to be mended."""
    return Mistake(command, says, mend or {}, then, before, QUICK)


ONE_WORD = (
    r"""awk 'BEGIN {print "Nr,Word,Tag"; n = 1} NF < 2 {n++; next} {print n "," $1 "," $2}' words.conll > rows.csv"""
)
"""Makes a table of the sentences in words.conll, with one word in each row."""

MISTAKES = (
    # Where it is.
    wrong(f"{CLASSIFY} reviws.csv", "no such file or folder; did you mean", mend={"reviws": "reviews"}),
    wrong(f"{CLASSIFY} reviews.CSV", "no such file or folder; did you mean", mend={".CSV": ".csv"}),
    wrong(f"{CLASSIFY} reviews.csv --data.eval late.csv", "data.eval is 'late.csv'", mend={"late.csv": "later.csv"}),
    wrong(f"{CLASSIFY} imdb", "if it is a data set of the hub, give --data.name imdb"),
    wrong("python recipes/classify.py --data.name imdb", "HF_HUB_OFFLINE", "the path of a local file or folder"),
    wrong(f"{CLASSIFY} https://example.com/reviews.csv", "addresses are not read: download it and give the file"),
    wrong(f"{CLASSIFY} '*.csv'", "do not have the same columns", "give one of the files or make them alike"),
    wrong(f"{CLASSIFY} reviews.csv,later.csv", "several names; give one: a folder with these files, or a pattern"),
    wrong(f"{CLASSIFY} models/encoder", "the folder of a model, and not of data"),
    wrong(f"{CLASSIFY} runs/reviews", "the folder of a run, and not of data"),
    wrong(f"{CLASSIFY} empty", "the folder empty has no data files; read are .csv", before="mkdir empty"),
    wrong(f"{CLASSIFY} link.csv", "a link to nothing.csv, which does not exist", before="ln -s nothing.csv link.csv"),
    wrong(f"{CLASSIFY} reviews.csv", "may not be read by this user", before="chmod 000 reviews.csv"),
    wrong(f"{CLASSIFY} photos", "recipes/classify_images.py takes with --data.name photos"),
    wrong("python recipes/classify.py --data.eval later.csv", "there is nothing to train on; give data.train"),
    wrong(f"{CLASSIFY} reviews.csv --data.config x", "data.name does not say of which data set"),
    # Columns.
    wrong(
        f"{CLASSIFY} stars.csv --data.text Review --data.label star",
        "data.text is 'Review', but the data has the columns 'review', 'stars'; did you mean 'review'?",
        "data.label is 'star', but the data has the columns 'review', 'stars'; did you mean 'stars'?",
        then=f"{CLASSIFY} stars.csv --data.text review --data.label stars",
    ),
    wrong(f"{CLASSIFY} unlabelled.csv", "cannot tell which column holds the label", "give --data.label COLUMN"),
    wrong(f"{CLASSIFY} reviews.csv --data.label star", "the data has the columns 'text', 'label'"),
    wrong(f"{CLASSIFY} reviews.csv --data.eval stars.csv", "no column 'text', 'label'", "name them alike in both"),
    wrong(f"{CLASSIFY} reviews.csv --data.text text --data.label text", "'text' is given more than once"),
    wrong(
        f"{CLASSIFY} reviews.csv --data.text label",
        "has a label of its own",
        "name the column of the classes with --data.label",
    ),
    wrong(f"{CLASSIFY} questions.jsonl", "cannot tell which column holds the label"),
    wrong(
        f"{CLASSIFY} reviews.csv --data.group topic", "data.group is 'topic', and the evaluation data has the columns"
    ),
    # Heads and separators.
    wrong(
        f"{CLASSIFY} plain.csv",
        "line 1 looks like data, not like the names of the columns",
        before="tail -n +2 reviews.csv > plain.csv",
        mend={"": '--data.header "[text, label]"'},
    ),
    wrong(
        f"{CLASSIFY} plain.csv --data.header text,label",
        "it must be true or false or a list",
        before="tail -n +2 reviews.csv > plain.csv",
        mend={"text,label": '"[text, label]"'},
    ),
    wrong(
        f"{CLASSIFY} plain.csv --data.header text label",
        "--data.header is followed by 2 words",
        before="tail -n +2 reviews.csv > plain.csv",
        mend={"text label": '"[text, label]"'},
    ),
    wrong(
        f'{CLASSIFY} plain.csv --data.header "[text]"',
        "has 2 fields ('red red red', 'bad'), but data.header has 1 names",
        before="tail -n +2 reviews.csv > plain.csv",
    ),
    wrong(f'{CLASSIFY} reviews.csv --data.header "[a, a]"', "data.header names a more than once"),
    # What is in it.
    wrong(f"{CLASSIFY} empty.csv", "empty.csv is empty (0 bytes); give a file with rows", before="touch empty.csv"),
    wrong(f"{CLASSIFY} head.csv", "has no rows, only a header", before="head -1 reviews.csv > head.csv"),
    wrong(f"{CLASSIFY} one.csv", "every row has the label 'bad'", before="head -2 reviews.csv > one.csv"),
    wrong(
        f"{CLASSIFY} few.csv",
        "none of the 2 training rows can be held out",
        before="head -3 reviews.csv > few.csv",
    ),
    wrong(
        f"{CLASSIFY} more.csv",
        "more.csv, line 32: 3 fields, but the header has 2",
        "double quotes",
        before="cp reviews.csv more.csv; echo 'so, so,good' >> more.csv",
    ),
    wrong(
        f"{CLASSIFY} more.csv",
        "more.csv, line 32: malformed (a quote that opens there is never closed",
        before="cp reviews.csv more.csv; echo '\"so,good' >> more.csv",
    ),
    wrong(
        f"{CLASSIFY} latin.csv",
        "latin.csv, line 2: not UTF-8",
        "iconv -f",
        before="sed '2s/red/r\\xe9d/' reviews.csv > latin.csv",
    ),
    wrong(
        f"{CLASSIFY} wrong.json",
        "wrong.json, line 1: malformed json",
        before="cp reviews.csv wrong.json",
    ),
    wrong(f"{CLASSIFY} reviews.dat", "reviews.dat has the ending .dat", "ln -s", before="cp reviews.csv reviews.dat"),
    wrong(
        f"{CLASSIFY} gaps.csv",
        "no label in column 'label' in 10 rows",
        before="sed 's/,bad/,/' reviews.csv > gaps.csv; cat stars.csv | tail -20 | sed 's/,.*/,bad/' >> gaps.csv",
        mend=DROP,
    ),
    wrong(f"{CLASSIFY} reviews.csv --data.kind regression", "is not a finite number", "name other columns or settings"),
    wrong(f"{CLASSIFY} reviews.csv --data.kind multi", "give the sign between two labels with data.separator"),
    wrong(
        f"{CLASSIFY} reviews.csv --data.eval other.csv",
        "labels that the training data does not know: 'Good' (",
        "'Good' may be 'good'",
        before="sed 's/good/Good/' later.csv > other.csv",
    ),
    wrong(f'{CLASSIFY} reviews.csv --data.eval_sets "[later.csv]"', "it must be a mapping, such as {name: value}"),
    wrong(
        f'{CLASSIFY} reviews.csv --data.eval_sets "{{later: latter.csv}}"',
        "data.eval_sets later is 'latter.csv'",
        mend={"latter.csv": "later.csv"},
    ),
    wrong(
        f'{CLASSIFY} reviews.csv --data.eval later.csv --data.eval_sets "{{a: later.csv}}"',
        "data.eval is 'later.csv' and data.eval_sets names others",
    ),
    wrong(f"{CLASSIFY} reviews.csv --data.max_length 1000", "takes at most 512 tokens; give", mend={"1000": "512"}),
    # Tags.
    wrong(
        "python recipes/tag.py --data.train rows.csv",
        "if 'Nr' tells which sentence a word is of, give --data.sentence Nr",
        before=ONE_WORD,
        mend={"": "--data.sentence Nr"},
    ),
    wrong(
        "python recipes/tag.py --data.train rows.csv --data.sentence nr",
        "data.sentence is 'nr'",
        "the data has 'Nr'; name the one that tells which sentence a word is of",
        before=ONE_WORD,
        mend={" nr": " Nr"},
    ),
    wrong(
        "python recipes/tag.py --data.train rows.csv --data.sentence Nr",
        "in column 'Nr' comes again in row",
        "sort the rows",
        before=f"{ONE_WORD}; sed -n 2p rows.csv >> rows.csv",
    ),
    wrong("python recipes/tag.py --data.train reviews.csv", "no row of the column 'label' has more than one word"),
    wrong(
        "python recipes/tag.py --data.train words.conll --data.tags label", "the data has the columns 'tokens', 'tags'"
    ),
    wrong(
        "python recipes/tag.py --data.train w.conll",
        "'Basel' is a word without a tag; a CoNLL file has a word and its tag on each line",
        before="sed 's/\\t.*//' words.conll > w.conll",
    ),
    wrong(
        "python recipes/tag.py --data.train w.conll",
        "are tagged as inside of an entity that has not begun",
        before="sed 's/B-person/I-person/' words.conll > w.conll",
        mend={"": "--data.repair true"},
    ),
    wrong(
        "python recipes/tag.py --data.train words.conll --data.max_length 2",
        "adds 2 tokens of its own to each window",
        "give at least 3",
        then="python recipes/tag.py --data.train words.conll --data.max_length 3",
    ),
    # Answers.
    wrong(
        "python recipes/answer.py --data.train reviews.csv",
        "which column holds the questions",
        "--data.question COLUMN",
    ),
    wrong(
        "python recipes/answer.py --data.train questions.jsonl --data.question query", "but the data has the columns"
    ),
    wrong("python recipes/answer.py --data.train questions.jsonl --data.stride 500", "give a smaller data.stride"),
    wrong(
        "python recipes/answer.py --data.train moved.jsonl",
        "whose answer_start does not point at the answer",
        before='sed \'s/"answer_start": \\[[0-9]*\\]/"answer_start": [3]/\' questions.jsonl > moved.jsonl',
        mend={"": "--data.mend_answers"},
    ),
    # Summaries and translations.
    wrong(
        "python recipes/summarize.py --data.train reviews.csv", "which column holds the target text", "--data.target"
    ),
    wrong("python recipes/summarize.py --data.train articles.jsonl --data.source text", "'document', 'summary'"),
    wrong("python recipes/summarize.py --data.train articles.jsonl --data.max_target_length 0", "1 or greater"),
    wrong(
        "python recipes/translate.py --data.train sentences.jsonl",
        "say which to translate into which",
        mend={"": "--data.source_language en --data.target_language de"},
    ),
    wrong(
        "python recipes/translate.py --data.train sentences.jsonl --data.source_language en --data.target_language fr",
        "data.target_language is 'fr', but the column 'translation' holds 'en', 'de'",
        mend={"fr": "de"},
    ),
    wrong(
        "python recipes/translate.py --data.train sentences.jsonl --data.source en --data.target de",
        "data.source is 'en', but the data has the columns 'translation'",
    ),
    # Texts.
    wrong("python recipes/language.py --data.train reviews.csv --data.text words", "the columns 'text', 'label'"),
    wrong("python recipes/language.py --data.train book.txt --data.block 100000", "give", mend={"100000": "512"}),
    wrong("python recipes/language.py --data.train s.txt", "give data.eval, or more text", before="echo short > s.txt"),
    wrong('python recipes/language.py --data.train book.txt --data.eval_sets "{a: book.txt}"', "can't be had here"),
    # Conversations and preferences.
    wrong("python recipes/chat.py --data.train reviews.csv", "what the user says", "give --data.prompt COLUMN"),
    wrong(
        "python recipes/chat.py --data.train chats.jsonl --data.messages talks", "the data has the columns 'messages'"
    ),
    wrong(
        "python recipes/chat.py --data.train c.jsonl",
        "with the role 'asistant'; known are system",
        before="sed 's/assistant/asistant/' chats.jsonl > c.jsonl",
    ),
    wrong(
        "python recipes/chat.py --data.train c.jsonl",
        "where a message has the keys role, text; it needs role and content",
        before='sed \'s/"content"/"text"/g\' chats.jsonl > c.jsonl',
    ),
    wrong(
        "python recipes/chat.py --data.train c.jsonl",
        "that the assistant begins, before any user",
        before='sed \'s/"role": "user"/"role": "assistant"/g\' chats.jsonl > c.jsonl',
    ),
    wrong(
        'python recipes/chat.py --data.train chats.jsonl --generate.final_answer "####"',
        "whose last reply has no '####'",
        "give another mark, or leave it out",
    ),
    wrong("python recipes/prefer.py --data.train reviews.csv", "--data.chosen COLUMN", "--data.rejected COLUMN"),
    wrong("python recipes/prefer.py --data.train pairs.jsonl --data.chosen better", "'prompt', 'chosen', 'rejected'"),
    wrong(
        "python recipes/prefer.py --data.train p.jsonl",
        "whose rejected side is empty; give a text that is worse",
        before='sed \'3s/"rejected": ".*"/"rejected": ""/\' pairs.jsonl > p.jsonl',
    ),
    # Sentences.
    wrong("python recipes/embed.py --data.train similar.csv --data.negative none", "the columns 'anchor', 'positive'"),
    wrong("python recipes/embed.py --data.train similar.csv --data.score positive", "give each column one part"),
    wrong(
        'python recipes/embed.py --data.train similar.csv --data.score_range "[5, 0]"', "the first number must be below"
    ),
    # Images.
    wrong("python recipes/classify_images.py --data.name photo", "did you mean photos?", mend={"photo": "photos"}),
    wrong("python recipes/classify_images.py --data.name reviews.csv", "which column holds the image", "--data.image"),
    wrong("python recipes/classify_images.py --data.name photos/red", "move each into a folder of its label's name"),
    wrong(
        "python recipes/classify_images.py --data.name photos",
        "an image is in no format that is known here",
        before="echo broken > photos/red/999.png",
        mend=DROP,
    ),
    wrong(
        "python recipes/classify_images.py --data.name photos",
        "an image is empty (0 bytes)",
        before="touch photos/red/999.png",
        mend=DROP,
    ),
    wrong("python recipes/classify_images.py --data.name photos --data.max_pixels 10", "has more than 10 pixels"),
)
