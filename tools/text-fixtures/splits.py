"""Writes how llama.cpp's regexes split texts, for every pre-tokenizer that it names.

    python3 tools/text-fixtures/splits.py LLAMA_CPP/src/llama-vocab.cpp crates/welte-text/tests/fixtures/splits.json

The regexes are read from llama.cpp's source and applied by the `regex` package: each to the pieces that the previous one left, a
match or what is between two matches being a piece. llama.cpp adapts some of them, or replaces them by functions; for these the
regex of the model's own tokenizer is used. The fixture holds the lengths of the pieces in characters.
"""

import json
import re
import sys

import regex

TEXTS = [
    "Hello world! It's 2026, we'll see.",
    "HE'S there; they'VE gone, I'D say",
    "one  two   three    \n\n\tfour \r\n five  ",
    "12345678 1,234.5678 ١٢٣٤٥ ½ 10000000000",
    "naïve café – “quotes” … l'été Straße ǅ",
    "def f(x):\n    return x**2 # comment\n\n\n",
    "中文字符混合English和数字123，标点。日本語テキスト ひらがな",
    "한국어 텍스트 ㅋㅋㅋ 안녕",
    "ไทย ภาษา ລາວ ខ្មែរ မြန်မာ",
    "हिन्दी में पाठ العربية نص עברית",
    "🙂👍🏽 emoji👨‍👩‍👧 text",
    "a\u00a0b\u3000c\u200bd e\u0301",
    "https://example.com/a_b?c=1&d=2#e <tag> $x^2$ ~~~",
    "             indented\n \n  \n",
    "CamelCaseWord snake_case_word UPPER lower Mixed123abc",
    "Ankara'ya İstanbul'dan gidiyor",
]
# In place of llama.cpp's functions.
KIMI_WORD = (r"[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]%s[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]%s"
             r"(?:'(?i:s|t|re|ve|m|ll|d))?")
KIMI = "|".join([r"\p{Han}+", KIMI_WORD % ("*", "+"), KIMI_WORD % ("+", "*"), r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*",
                 r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
FUNCTIONS = {r"\p{Han}+": KIMI, r"\p{AFMoE_digits}": r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"}


def without_comments(source):
    return re.sub(r"^\s*//.*$", "", source, flags=re.M)


def text_of(literal):
    """The value of a C++ string literal."""
    escapes = {"\\": "\\", '"': '"', "n": "\n", "r": "\r", "t": "\t"}
    return re.sub(r"\\(.)", lambda m: escapes.get(m[1], m[0]), literal)


def kinds(source):
    """The regexes of each kind. Where a comment quotes the regex of the model's own tokenizer, that one counts."""
    body = source[source.index("struct llm_tokenizer_bpe : llm_tokenizer"):]
    body = body[:body.index("std::vector<std::string> regex_exprs;")]
    found, literal = {}, r'"((?:[^"\\]|\\.)*)"'
    for block in re.split(r"^ +break;", body, flags=re.M):
        names = re.findall(r"case LLAMA_VOCAB_PRE_TYPE_(\w+):", block) + ["DEFAULT"] * ("default:" in block)
        original = re.search(r"// original regex from tokenizer\.json\s*//\s*" + literal, block)
        stored = re.search(r"regex_exprs = \{(.*?)\};", without_comments(block), re.S)
        if original or stored:
            patterns = [original[1]] if original else re.findall(literal, stored[1])
            found |= {name: [text_of(pattern) for pattern in patterns] for name in names}
    return found


def named(source):
    """The kind of each name."""
    found, names = {}, []
    for match in re.finditer(r'tokenizer_pre == "([^"]+)"|pre_type = LLAMA_VOCAB_PRE_TYPE_(\w+);', without_comments(source)):
        if match[1]:
            names.append(match[1])
        else:
            found |= {name: match[2] for name in names}
            names = []
    return found


def split(text, patterns):
    pieces = [text]
    for pattern in patterns:
        compiled, after = regex.compile(FUNCTIONS.get(pattern, pattern), regex.V1), []
        for piece in pieces:
            at = 0
            for match in compiled.finditer(piece):
                after += [piece[at:match.start()], match[0]]
                at = match.end()
            after.append(piece[at:])
        pieces = [piece for piece in after if piece]
    return pieces


def main():
    source = open(sys.argv[1], encoding="utf-8").read()
    regexes, rows = kinds(source), {}
    for name, kind in named(source).items():
        if kind not in regexes:
            print(f"no regexes: {name} ({kind})")
            continue
        lengths = json.dumps([[len(piece) for piece in split(text, regexes[kind])] for text in TEXTS], separators=(",", ":"))
        rows.setdefault(lengths, []).append(name)
    rows = [f'{{"names":{json.dumps(sorted(names))},"lengths":{lengths}}}' for lengths, names in rows.items()]
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        out.write('{"texts":' + json.dumps(TEXTS) + ',\n"splits":[\n' + ",\n".join(rows) + "\n]}\n")
    print(f"{len(rows)} ways to split")


if __name__ == "__main__":
    main()
