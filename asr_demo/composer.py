"""A summary made of the talk's own sentences, without a model, a network or chance.

Each segment of the transcript is taken for a sentence and scored by how many of the talk's frequent words it
holds and by how near it is to the talk as a whole. The best ones are shown in the order in which they were said.
The text is text: nothing in it is read as markup or as an instruction.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

SENTENCES = 3
SENTENCE_CHARACTERS_MAX = 400
CHUNK_CHARACTERS = 24
SEGMENTS_MAX = 5_000

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_LONELY_I = re.compile(r"(?<!\S)i(?=\s|$|['’](?:m|ve|ll|d)\b)")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ENDS = (".", "!", "?", "…")
# Words of grammar, and those with which a speaker greets the house: frequent, and about nothing.
_STOP_WORD_LIST = """
    a about after again all also am an and another any are as at be because been before being but by can could did do
    does doing done down each else ever every few for from further get gets go goes going good had has have having he
    her here hers him his how i if in into is it its itself just last let like many may me might more most must my
    never next no nor not now of off on once one only or other our out over own same say see shall she should so some
    sometimes such take takes than that the their them then there these they thing things this those through to too
    under until up us very was we were what when where which while who whom whose why will with would you your
    afternoon evening everybody everyone goodbye hello ladies gentlemen listening morning please talk thank thanks
    today tonight welcome
"""
_STOP_WORDS = frozenset(_STOP_WORD_LIST.split())
# A sentence that says what a chosen one said already is worth less; above this likeness it is left out.
_LIKENESS_MAX = 0.8
_CENTRALITY_WEIGHT = 0.5
_POSITION_WEIGHT = 0.15
# Below this many words a sentence seldom stands by itself.
_FULL_LENGTH_WORDS = 5


def summarize(segments: Sequence[str], sentences: int = SENTENCES) -> str:
    """Return at most `sentences` of the segments as one text, each with a capital and a full stop.

    A segment longer than SENTENCE_CHARACTERS_MAX is cut at a word; of a transcript with more than SEGMENTS_MAX segments
    the first ones are read. No segment with a word gives the empty string.
    """
    return " ".join(as_sentence(segments[index]) for index in choose(segments, sentences))


def chunks(segments: Sequence[str], sentences: int = SENTENCES) -> Iterator[str]:
    """The summary in pieces of some words, for a stream; together they are exactly what `summarize` returns."""
    return pieces(summarize(segments, sentences))


def pieces(text: str) -> Iterator[str]:
    """`text` cut between words, CHUNK_CHARACTERS or a little more each; together they are `text`."""
    piece = ""
    for word in re.findall(r"\s*\S+|\s+$", text):
        piece += word
        if len(piece) >= CHUNK_CHARACTERS:
            yield piece
            piece = ""
    if piece:
        yield piece


def choose(segments: Sequence[str], sentences: int) -> list[int]:
    """Return the places of the chosen segments, ascending. The same input always gives the same choice."""
    vectors = [_content_words(text) for text in segments[:SEGMENTS_MAX]]
    spoken = [place for place, text in enumerate(segments[:SEGMENTS_MAX]) if _WORD.search(text)]
    talk: Counter[str] = Counter()
    for vector in vectors:
        talk.update(vector)
    scores = {place: _score(vectors[place], talk, rank, len(spoken)) for rank, place in enumerate(spoken)}
    chosen: list[int] = []
    for place in sorted(spoken, key=lambda place: (-scores[place], place)):
        if len(chosen) >= sentences:
            break
        if all(_likeness(vectors[place], vectors[other]) <= _LIKENESS_MAX for other in chosen):
            chosen.append(place)
    return sorted(chosen)


def as_sentence(text: str) -> str:
    """Return the segment as a reader expects a sentence: one line, a capital at the start, an end mark."""
    line = " ".join(_CONTROLS.sub(" ", text).split())
    if len(line) > SENTENCE_CHARACTERS_MAX:
        line = line[:SENTENCE_CHARACTERS_MAX].rsplit(" ", 1)[0] + "…"
    line = _LONELY_I.sub("I", line)
    line = line[:1].upper() + line[1:]
    return line if line.endswith(_ENDS) else f"{line}."


def _content_words(text: str) -> Counter[str]:
    words = (word.lower().replace("’", "'") for word in _WORD.findall(text))
    return Counter(_stem(word) for word in words if word not in _STOP_WORDS)


def _stem(word: str) -> str:
    """Take a plural for its singular, roughly: enough for counting, and never shown."""
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _score(sentence: Counter[str], talk: Counter[str], rank: int, count: int) -> float:
    if not sentence:
        return 0.0
    most = max(talk.values())
    # The mean, not the sum: a long sentence must not win by its length alone.
    frequency = sum(talk[word] / most for word in sentence) / max(len(sentence), _FULL_LENGTH_WORDS)
    position = 1.0 - rank / count
    return frequency + _CENTRALITY_WEIGHT * _likeness(sentence, talk) + _POSITION_WEIGHT * position


def _likeness(one: Counter[str], other: Counter[str]) -> float:
    """The cosine between two bags of words: 0 for nothing in common, 1 for the same words in the same shares."""
    if len(one) > len(other):
        one, other = other, one
    product = sum(times * other[word] for word, times in one.items())
    if product == 0:
        return 0.0
    return product / math.sqrt(_square(one) * _square(other))


def _square(words: Counter[str]) -> int:
    return sum(times * times for times in words.values())
