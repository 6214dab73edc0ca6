"""Writes the fixtures of crates/welte-text/tests: small vocabularies with the ids that the reference packages give,
and chat templates with what Python's jinja2 makes of them.

    pip install tokenizers sentencepiece jinja2
    python tools/text-fixtures/make.py crates/welte-text/tests/fixtures
"""

import io
import json
import pathlib
import sys
import tempfile

import jinja2
import jinja2.ext
import jinja2.sandbox
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = """
A fox lived by the river, and every morning she went down to drink. The water was cold; it tasted of stones and snow.
"You're late," said the heron. "I've been here since dawn, and I'll be here when you're gone." They didn't agree.
In 1999 there were 12 foxes, in 2004 there were 365, and by 2026 nobody could count them: 1,234,567 or 3.14159?
def add(a, b):
    # adds two numbers
    return a + b

for (int i = 0; i < 10; ++i) { total += values[i] * 0.5f; }
Über den Wäldern stand der Mond, größer als sonst. Où est la bibliothèque? Señor, mañana será otro día.
Лиса жила у реки и каждое утро ходила пить воду. Η αλεπού ζούσε δίπλα στο ποτάμι.
狐狸住在河边，每天早上都去喝水。狐は川のそばに住んでいました。여우는 강가에 살았다.
كان الثعلب يعيش بجانب النهر. नदी के किनारे एक लोमड़ी रहती थी।
Emoji: 🦊🌊👩‍👩‍👧 and signs: € £ ¥ § ± ≠ → ✓
HTTPServer camelCase snake_case SCREAMING_CASE kebab-case x86_64 utf8mb4
""" * 3

TEXTS = [
    "",
    " ",
    "  ",
    "a",
    " a",
    "Hello, world!",
    "hello  world   again",
    "You're sure THEY'LL see we'Ve won? I'm, he'd, it's 'tis",
    "In 1999 there were 12 foxes; 1234567890 of them. 3.14159 ٣٤٥ ½",
    "tabs\tand\nnewlines\r\n\r\n  \n   indented\n\n\n",
    "trailing spaces   ",
    "   leading spaces",
    "def f(x):\n    return x ** 2  # square\n\n\tif x:\n\t\tpass\n",
    "Über größer Où mañana naïve e\u0301 Å A\u030a",
    "Лиса жила у реки. Η αλεπού ζούσε.",
    "狐狸住在河边，每天早上都去喝水。狐は川のそば。여우는 강가에.",
    "كان الثعلب يعيش. नदी के किनारे थी।",
    "🦊🌊👩‍👩‍👧 → ✓ \u200b\ufeff\u00a0\u3000x",
    "<|im_start|>user\nHi<|im_end|>\n<|end",
    "a<|im_end|>b <|im_end|> c",
    "camelCase HTTPServer snake_case x86_64!!! ... ???///",
    "\x00\x01\x7f control",
    "\U0001f98a\U00010400\ud7ff\ue000",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "▁under ▁▁ bar <0x0A> <unk> <s>",
]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTE_LEVEL = {
    "gpt-2": ([GPT2], False),
    "qwen2": ([HEAD + r"\p{N}" + TAIL], False),
    "llama-bpe": ([HEAD + r"\p{N}{1,3}" + TAIL], True),
    "starcoder": ([r"\p{N}", GPT2], False),
}
SPECIALS = ["<|begin|>", "<|im_start|>", "<|im_end|>"]


def byte_level(pre):
    regexes, ignore_merges = BYTE_LEVEL[pre]
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    steps = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in regexes]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS.split("\n\n"), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    tokenizer.add_tokens([AddedToken("   ", special=False, normalized=False)])
    if ignore_merges:
        bos = SPECIALS[0]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    cases = [{"text": text, "ids": tokenizer.encode(text).ids} for text in TEXTS if encodable(text)]
    return {"pre": pre, "tokenizer": json.loads(tokenizer.to_str()), "cases": cases}


def encodable(text):
    try:
        text.encode()
        return True
    except UnicodeEncodeError:
        return False


def sentence_piece(prefix):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.strip().split("\n")),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        user_defined_symbols=["<turn>"],
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    kinds = []
    for i in range(len(pieces)):
        kind = 1
        if pieces.is_unknown(i):
            kind = 2
        elif pieces.is_control(i):
            kind = 3
        elif pieces.is_byte(i):
            kind = 6
        elif pieces.id_to_piece(i) == "<turn>":
            kind = 4
        kinds.append(kind)
    # Control tokens spelt out in a text are ordinary text to the package, but it drops NUL.
    texts = [text for text in TEXTS if encodable(text) and "\x00" not in text]
    return {
        "add_space_prefix": prefix,
        "tokens": [pieces.id_to_piece(i) for i in range(len(pieces))],
        "scores": [pieces.get_score(i) for i in range(len(pieces))],
        "token_types": kinds,
        "cases": [{"text": text, "ids": pieces.encode(text)} for text in texts],
    }


# Source and target of characters, as SentencePiece's own rules have them: spaces, ligatures, wide and composed letters, and
# characters that disappear.
CHARACTERS = {
    "\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u3000": " ", "\u200b": " ", "\ufeff": "", "\x7f": "", "\x01": "",
    "½": "1⁄2", "ﬁ": "fi", "™": "TM", "e\u0301": "é", "A\u030a": "Å", "，": ",", "…": "...",
}


def unigram():
    """XLM-R: unigram after a map of characters. The reference is laid out as the published tokenizer.json is."""
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        points = lambda text: " ".join(f"{ord(c):X}" for c in text)
        rules.write("".join(f"{points(a)}\t{points(b)}\n" for a, b in CHARACTERS.items()))
        rules.flush()
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS.strip().split("\n")),
            model_writer=model,
            model_type="unigram",
            vocab_size=270,
            character_coverage=0.999,
            normalization_rule_tsv=rules.name,
            minloglevel=2,
        )
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    pieces = [(piece.piece, piece.score) for piece in proto.pieces][3:]
    entries = [(text, 0.0) for text in ["<s>", "<pad>", "</s>", "<unk>"]] + pieces + [("<mask>", 0.0)]
    charsmap = proto.normalizer_spec.precompiled_charsmap
    tokenizer = Tokenizer(models.Unigram(entries, 3, False))
    tokenizer.normalizer = normalizers.Precompiled(charsmap)
    words = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), words])
    controls = ["<s>", "<pad>", "</s>", "<mask>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in controls])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    # Files mark <unk> as unknown, which is not parsed in a text.
    texts = [text for text in TEXTS if encodable(text) and "<unk>" not in text] + ["▁under ▁▁ bar", "a <s> b</s>  c"]
    return {
        "charsmap": list(charsmap),
        "tokenizer": json.loads(tokenizer.to_str()),
        "cases": [{"text": text, "ids": tokenizer.encode(text).ids} for text in texts],
    }


def listed_pieces():
    """Gemma 4: characters, byte tokens and listed merges. The reference splits where the published tokenizer.json does."""
    spaces = normalizers.Replace(" ", "\u2581")
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE())
    trained.normalizer = spaces
    trained.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=specials + bytes_, limit_alphabet=120, show_progress=False)
    trained.train_from_iterator([CORPUS, "a\n\nb\n\n\nc\n\n" * 5], trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(model["vocab"], merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = spaces
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    # Files mark <unk> as unknown, which is not parsed in a text.
    parsed = [text for text in specials if text != "<unk>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in parsed])
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    kinds = [2 if t == "<unk>" else 3 if t in specials else 6 if t in bytes_ else 1 for t in tokens]
    texts = [text for text in TEXTS if encodable(text)] + ["<bos><|turn>user\nHi\n\n\nthere<turn|>\n"]
    cases = [{"text": text, "ids": tokenizer.encode(text).ids} for text in texts]
    return {"tokens": tokens, "token_types": kinds, "merges": [" ".join(merge) for merge in merges], "cases": cases}


def templates(folder):
    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def strftime_now(text):
        import datetime

        return datetime.datetime.fromtimestamp(1_709_210_096, datetime.timezone.utc).strftime(text)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    chats = json.loads((folder / "chats.json").read_text())
    results = []
    for path in sorted((folder / "templates").glob("*.jinja")):
        template = environment.from_string(path.read_text())
        for number, chat in enumerate(chats):
            try:
                output = {"text": template.render(bos_token="<s>", eos_token="</s>", **chat)}
            except jinja2.exceptions.TemplateError as error:
                output = {"error": str(error)}
            results.append({"template": path.name, "chat": number, **output})
    return results


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(path.name, path.stat().st_size)


def main():
    folder = pathlib.Path(sys.argv[1])
    for pre in BYTE_LEVEL:
        write(folder / f"bpe-{pre}.json", byte_level(pre))
    write(folder / "sentencepiece.json", sentence_piece(True))
    write(folder / "sentencepiece-no-prefix.json", sentence_piece(False))
    write(folder / "listed-pieces.json", listed_pieces())
    write(folder / "unigram.json", unigram())
    write(folder / "rendered.json", templates(folder))


main()
