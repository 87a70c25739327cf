"""Distinct English sentences of given lengths, generated from a word list and a small grammar.

The grammar has no recursion, so its texts of exactly n characters can be counted:
count(a b, n) = sum_i count(a, i) count(b, n - i). A sentence of a given length is then sampled
top-down, and never has to be truncated or rejected for its length.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from random import Random

from regard.errors import UserError

# A longer text consists of several sentences.
MAX_SENTENCE_LENGTH = 90
MIN_PART_LENGTH = 25
MIN_LENGTH = 3  # "Hi."
NO_FULL_STOP = 0.4  # probability that a text may omit its last full stop
MAX_FAILURES = 500  # rejected samples in a row at one length, after which that length is dropped

# Words by class; an underscore is a space, and verb-ed a regular past participle. `{class:a}` and
# `{class:an}` in a rule are the words that follow "a" and "an": decided by the first
# letter, so no "hour" and no "useful" here.
WORDS = {
    "name": """Al Amy Ann Ava Ben Bob Dan Ed Eva Ian Ivy Jo Kim Leo Lou Max Mia Ned Pam Ray Rob Sam
        Sue Tim Tom Una Zoe Alan Anna Carl Clara Daisy David Elena Emma Felix Grace Hanna Henry
        James Julia Kenji Laura Lucia Martin Nadia Omar Oscar Paula Peter Rosa Ruth Samir Sofia
        Tariq Victor Yusuf Benjamin Charlotte Dr._Patel Mrs._Lee Mr._Okoro Professor_Lind""",
    "food": "bread cake cheese chocolate fish honey ice_cream jam pizza rice salad soup",
    "drink": "coffee juice lemonade milk tea water",
    "nice": "brave clever curious elegant friendly funny happy kind new old quiet shy tall young",
    "wild": "angry big black brown grey hungry lazy little old small white young",
    "neat": "ancient black blue broken cheap empty green heavy new old orange red small wooden",
    "feeling": """alone angry asleep awake bore-ed brave busy calm cold curious early happy hungry ill
        late lost proud quiet ready sad safe shy sorry surprise-ed thirsty tire-ed
        worry-ed""",
    "look": "big black blue cheap clean dirty dry empty green heavy new red small ugly wet",
    "taste": "bad cold fine fresh good hot sweet warm",
    "owner": "my your his her our their",
    "number": "2 3 4 5 6 7 8 9 10 12 20 50 two three four five six seven ten",
    "city": """Athens Berlin Boston Cairo Cape_Town Delhi Dublin Hong_Kong Lima Lisbon London Madrid
        Nairobi New_York Oslo Paris Prague Rome San_Francisco Seoul Sydney Tokyo Toronto Vienna""",
    "country": "Brazil Canada Chile Egypt France India Italy Japan Kenya Peru Spain the_UK the_USA",
    "place": """airport bakery beach bridge church factory farm forest garden harbour hospital hotel
        house kitchen lake library market museum park river school station theatre zoo""",
    "there": "at_home by_the_sea here in_the_garden in_the_kitchen in_town on_the_bus outside",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "month": """January February March April May June July August September October November
        December""",
    "hour": "1 2 3 4 5 6 7 8 9 10 11 12",
    "then": "again all_day all_night at_noon last_week once this_morning today twice yesterday",
    "later": "again at_noon later next_week next_year now soon today tomorrow tonight",
    "often": "all_day at_night every_day every_year in_summer in_winter now_and_then",
    "can": "can can't could couldn't may might must mustn't should shouldn't will won't would",
    "unit": "days hours minutes months weeks years",
    "order": """go run sit try eat look wait stop jump think sing smile listen hurry_up wake_up
        sit_down come_in come_here go_home go_away wait_here relax be_brave be_kind be_polite""",
    "say": """hi hey hello OK oh yes no thanks thank_you sorry welcome good_night good_morning
        goodbye bye well_done good_luck oh_no not_now of_course see_you me_too not_yet maybe""",
}

# Singular and plural (`{animal}`, `{animals}`); irregular plurals are given.
NOUNS = {
    "person": """actor artist aunt baker boy child:children cook doctor driver engineer farmer
        friend gardener girl librarian neighbour nurse pilot poet singer student teacher uncle""",
    "animal": """bear bee cat cow dog donkey duck elephant fox goat goose:geese hen horse mouse:mice
        otter owl parrot pig pony rabbit sheep:sheep squirrel tiger turtle""",
    "thing": """atlas basket bell bicycle blanket book box camera candle clock coat cup envelope
        guitar hat jar key kite lamp laptop letter map newspaper pen ring scarf:scarves umbrella""",
}

# Verbs by the object they take, as base:past:-ing; regular forms are left out, others given whole.
VERBS = {
    "rest": "eat:ate drink:drank hide:hid jump play run:ran:running sit:sat:sitting sleep:slept",
    "act": "cook cry dance laugh paint read:read sing:sang smile study talk work write:wrote "
    "play_chess watch_TV tell_a_joke:told_a_joke speak_French:spoke_French learn_English play_the_piano",
    "go": "come:came cycle go:went hurry run:ran:running walk",
    "fly": "come:came drive:drove fly:flew go:went move travel:travelled:travelling",
    "get": "borrow bring:brought buy:bought carry draw:drew find:found fix hide:hid lose:lost use",
    "meet": "ask call follow greet help invite meet:met talk_to teach:taught thank visit wait_for",
    "tend": "draw:drew feed:fed follow photograph watch look_after",
    "dine": "bring:brought buy:bought eat:ate make:made order share try",
    "sip": "drink:drank order share spill",
    "know": "hear:heard know:knew trust",
    "like": "forget:forgot:forgetting like love miss remember see:saw",
}
FORMS = ("do", "does", "did", "doing")

# Grammar rules; `|` separates alternatives. A rule with FORM is expanded for each of FORMS.
RULES = {
    "the": "the|{owner}",
    "a_person": "a {person:a}|an {person:an}|a {nice:a} {person}|an {nice:an} {person}",
    "a_animal": "a {animal:a}|an {animal:an}|a {wild:a} {animal}|an {wild:an} {animal}",
    "a_thing": "a {thing:a}|an {thing:an}|a {neat:a} {thing}|an {neat:an} {thing}",
    "someone": "{name}|{a_person}|{the} {person}|the {nice} {person}|{owner} friend {name}",
    "people": "the {persons}|{number} {persons}|{name} and {name}|{the} {nice} {persons}",
    "beast": "{a_animal}|{the} {animal}|the {wild} {animal}",
    "beasts": "the {animals}|{number} {animals}|{the} {wild} {animals}",
    "one": "he|she|{someone}",
    "all": "we|you|they|{people}",
    "who": "I|{one}|{all}",
    "whom": "him|her|them|{someone}|{people}",
    "pet": "it|them|{beast}|{beasts}",
    "what": "it|{a_thing}|{the} {thing}|{the} {neat} {thing}|{number} {things}|the {things}",
    "where": "{there}|in {city}|in {country}|at the {place}|near the {place}|behind the {place}|"
    "near {city}",
    "clock": "at {hour} o'clock|at {hour}:15|at {hour}:30|at {hour}:45",
    "when": "{then}|on {day}|in {month}|in 1987|{clock}|{number} {unit} ago|on {day} {clock}",
    "soon": "{later}|on {day}|in {month}|{clock}|in {number} {unit}|on {day} {clock}",
    "usually": "{often}|on {day}s|every {day}|in {month}|{clock}|every {day} {clock}",
    "before": "yesterday|last {day}|last night|on {day}|in {month}|in 2019|one day|this morning",
    "FORM": "{rest.FORM}|{act.FORM}|{get.FORM} {what}|{meet.FORM} {whom}|{tend.FORM} {pet}|"
    "{dine.FORM} {food}|{dine.FORM} {the} {food}|{dine.FORM} some {food}|{sip.FORM} {drink}|"
    "{sip.FORM} {the} {drink}|{sip.FORM} some {drink}",
    "trip.FORM": "{go.FORM} to the {place}|{fly.FORM} to {city}|{fly.FORM} to {country}",
    "feel.FORM": "{know.FORM} {whom}|{like.FORM} {whom}|{like.FORM} {what}|{like.FORM} {city}|"
    "{like.FORM} {beasts}",
    "story": "{who} {did}|{who} {did} {where}|{who} {feel.did}|{who} {trip.did}|"
    "{one} was {feeling}|I was {feeling}|{all} were {feeling}|{beast} {rest.did} {where}|"
    "{beasts} {rest.did} {where}|the {thing} was {look}|{who} didn't {do}|"
    "NASA {meet.did} {whom}|the BBC {meet.did} {whom}",
    "dated": "{story}|{who} {did} {when}|{who} {did} {where} {when}|{who} {trip.did} {when}",
    "tale": "{dated}, and {story}|{dated}, but {story}|{dated} because {story}|{story}, so {dated}|"
    "{story} while {story}|when {story}, {dated}|after {dated}, {story}|{one} said that {dated}|"
    "although {story}, {dated}|{before}, {story}, and {story}",
    "saga": "when {story}, {dated}, but {story}|{dated} because {story}, and {story}|"
    "{one} said that {dated}, but {story}|{story}, and {story} while {story}",
    "now": "I am|I'm|{one} is|he's|she's|{all} are|we're|you're|they're|{beast} is|{beasts} are",
    "state": "I am|I do|I did|he is|she is|we are|it is|we do|you did|I see|I know|{now} {feeling}|"
    "it's {look}|it is {look}|the {food} is {taste}|{the} {thing} is {look}|{now} {where}|"
    "there is {a_thing} {where}|there are {number} {animals} {where}",
    "always": "{one} {does}|I {do}|{all} {do}|{one} doesn't {do}|{all} don't {do}|"
    "{beast} {rest.does}|{beasts} {rest.do}|{one} {trip.does}|{all} {trip.do}",
    "fond": "{one} {feel.does}|I {feel.do}|{all} {feel.do}|{one} doesn't {feel.do}",
    "plan": "I am {doing}|{one} is {doing}|{all} are {doing}|they're {doing} {where}|{who} {can}|"
    "{who} {can} {do}|{who} {can} {do} {soon}|{who} {can} {trip.do}|{now} {rest.doing}|"
    "{now} {rest.doing} {where}|{who} will {do} {where} {soon}",
    "question": "did {who} {do}|did {who} {do} {when}|where is {someone}|where are {all}|"
    "can {who} {do}|why did {who} {do}|who {did}|is {one} {feeling}|are {all} {feeling}|"
    "is it {look}|when will {who} {trip.do}|may I {do}|is the {food} {taste}|isn't {one} {where}|"
    "how are you, {name}|what time is it in {city}|why|who|how|what|and {who}|why not|{name}",
    "call": "{say}|{say}, {name}|{order}|{order}, {name}|{name}|{do}, {name}|don't {do}|let's {do}|"
    "please {do}|{do}, please|let's {trip.do}",
    "sentence": "{dated}.|{tale}.|{saga}.|{before}, {story}.|{always}.|{always} {usually}.|{fond}.|"
    "{state}.|{plan}.|{question}?|{call}.|{call}!",
}


class Expression:
    """A grammar symbol: a list of alternatives, each a text or one expression followed by another."""

    def __init__(self, alternatives: Sequence["str | tuple[Expression, Expression]"], limit: int):
        self.alternatives = alternatives
        self.counts = count_texts(alternatives, limit)
        self.lengths = [(length, count) for length, count in enumerate(self.counts) if count]
        self.tables: dict[int, tuple[list[Option], list[float]]] = {}

    def options(self, length: int) -> Iterator[tuple[int, "Option"]]:
        """(number of texts, option) for every alternative and every way to divide `length` in two."""
        for alternative in self.alternatives:
            if not isinstance(alternative, str):
                first, second = alternative
                for part, count in enumerate(first.counts[: length + 1]):
                    if count and second.counts[length - part]:
                        yield count * second.counts[length - part], (first, part, second)
            elif len(alternative) == length:
                yield 1, alternative

    def sample(self, length: int, random: Random) -> str:
        """A random text of exactly `length` characters; `counts[length]` must not be 0."""
        if length not in self.tables:
            counted = list(self.options(length))
            options = [option for _, option in counted]
            self.tables[length] = options, cumulative_weights(n for n, _ in counted)
        options, bounds = self.tables[length]
        option = options[bisect_right(bounds, random.random())]
        if isinstance(option, str):
            return option
        first, part, second = option
        return first.sample(part, random) + second.sample(length - part, random)


Option = str | tuple[Expression, int, Expression]


def count_texts(
    alternatives: Iterable[str | tuple[Expression, Expression]], limit: int
) -> list[int]:
    """The number of texts of each length up to `limit`; two expressions convolve theirs."""
    counts = [0] * (limit + 1)
    for alternative in alternatives:
        if isinstance(alternative, str):
            if len(alternative) <= limit:
                counts[len(alternative)] += 1
            continue
        first, second = alternative
        for part, count in first.lengths:
            for rest, other in second.lengths:
                if part + rest > limit:
                    break
                counts[part + rest] += count * other
    return counts


def cumulative_weights(counts: Iterable[int]) -> list[float]:
    """Inner bounds that divide [0, 1) in proportion to the fourth roots of the counts.

    The root lets rare sentence patterns occur beside those with a million variants.
    """
    # Integer roots and one division each: the same floats on every platform.
    sums = list(accumulate(math.isqrt(math.isqrt(count << 24)) for count in counts))
    return [partial / sums[-1] for partial in sums[:-1]]


@lru_cache(maxsize=8)
def build_grammar(limit: int) -> Expression:
    """The expression for one sentence, for lengths up to `limit`. Built once for all splits of a corpus."""
    lists = {name: [inflect(word) for word in text.split()] for name, text in WORDS.items()}
    for name, text in NOUNS.items():
        nouns = [noun.split(":") for noun in text.split()]
        lists[name] = [noun[0] for noun in nouns]
        lists[f"{name}s"] = [noun[1] if noun[1:] else add_s(noun[0]) for noun in nouns]
    for name, text in VERBS.items():
        for form, *verbs in zip(FORMS, *map(conjugate, text.split()), strict=True):
            lists[f"{name}.{form}"] = verbs
    symbols: dict[str, Expression] = {}
    for name, words in lists.items():
        words = [word.replace("_", " ") for word in words]
        symbols[name] = Expression(words, limit)
        symbols[f"{name}:a"] = Expression([word for word in words if word[0] not in "aeiou"], limit)
        symbols[f"{name}:an"] = Expression([word for word in words if word[0] in "aeiou"], limit)
    for name, text in RULES.items():
        for form in FORMS if "FORM" in name else ("",):
            rules = text.replace("FORM", form).split("|")
            alternatives = [parse_rule(rule, symbols, limit) for rule in rules]
            symbols[name.replace("FORM", form)] = Expression(alternatives, limit)
    return symbols["sentence"]


def add_s(word: str) -> str:
    """The plural of a noun, or the third person singular of a verb: cats, boxes, carries."""
    if re.search("[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search("(s|x|ch|sh|o)$", word) else "s")


def add_ed(verb: str) -> str:
    """The regular past of a verb: walked, smiled, carried."""
    return add_s(verb).removesuffix("s").removesuffix("e") + "ed"


def inflect(word: str) -> str:
    """An entry of WORDS: `worry-ed` is "worried"."""
    return add_ed(word.removesuffix("-ed")) if word.endswith("-ed") else word


def conjugate(verb: str) -> list[str]:
    """An entry of VERBS in its four FORMS; only its first word is inflected."""
    phrase, *irregular = verb.split(":")
    base, *rest = phrase.split("_")
    doing = base + "ing" if re.search("ee$|[^e]$", base) else base[:-1] + "ing"
    regular = ["_".join([form, *rest]) for form in (base, add_s(base), add_ed(base), doing)]
    return [*regular[:2], *irregular, *regular[2 + len(irregular) :]]


def parse_rule(
    rule: str, symbols: dict[str, Expression], limit: int
) -> tuple[Expression, Expression]:
    """The first part and the rest of one alternative, such as "{who} {did} {where}"."""
    parts = re.findall(r"\{([^}]+)\}|([^{}]+)", rule)
    first, *others = [symbols[name] if name else Expression([text], limit) for name, text in parts]
    rest = Expression([""], limit)
    for part in reversed(others):
        rest = Expression([(part, rest)], limit)
    return first, rest


def has_repetition(sentence: str) -> bool:
    """Whether a name or a longer word occurs twice ("Ann met Ann")."""
    words = re.findall(r"[A-Z][\w']+|[\w']{4,}", sentence)
    return len(set(words)) < len(words)


def generate_text(length: int, sentence: Expression, random: Random) -> str:
    """A text of `length` characters: one sentence, or several if it is long."""
    texts = []
    while length >= MIN_LENGTH:
        part = length
        if length > MAX_SENTENCE_LENGTH:
            longest = min(MAX_SENTENCE_LENGTH, length - 1 - MIN_PART_LENGTH)
            part = MIN_PART_LENGTH + int(random.random() * (longest - MIN_PART_LENGTH + 1))
        # People omit the last full stop: a model must not learn to add one everywhere.
        omit = part == length and random.random() < NO_FULL_STOP
        text = sentence.sample(part + omit, random)
        if omit and not text.endswith("."):
            continue
        text = text.removesuffix(".") if omit else text
        if not has_repetition(text):
            texts.append(text[0].upper() + text[1:])
            length -= part + 1
    return " ".join(texts)


def generate_sentences(
    count: int, min_length: int, max_length: int, seed: int, accept: Callable[[str], bool] = bool
) -> list[str]:
    """`count` English sentences, distinct even in lower case, lengths uniform over the range.

    A length that is exhausted is replaced by the others. `accept` filters sentences. The same arguments
    give the same list on every platform.
    """
    if not MIN_LENGTH <= min_length <= max_length:
        raise UserError(
            f"expected {MIN_LENGTH} <= min_length <= max_length for generated sentences; got "
            f"min_length={min_length}, max_length={max_length}. Change the one that is out of range."
        )
    if count < 0:
        raise UserError(f"expected 0 or more sentences; got {count}. Ask for a positive number.")
    random, sentence = Random(seed), build_grammar(min(max_length, MAX_SENTENCE_LENGTH) + 1)
    failures = dict.fromkeys(range(min_length, max_length + 1), 0)
    lengths, lowercased, texts = list(failures), set(), []
    while len(texts) < count and lengths:
        length = lengths[int(random.random() * len(lengths))]
        text = generate_text(length, sentence, random)
        if text.lower() not in lowercased and accept(text):
            lowercased.add(text.lower())
            texts.append(text)
            failures[length] = 0
        else:
            failures[length] += 1
            if failures[length] == MAX_FAILURES:
                lengths.remove(length)
    if len(texts) < count:
        raise UserError(
            f"expected {count} distinct sentences of {min_length} to {max_length} characters; only "
            f"about {len(texts)} can be generated. Ask for fewer, or raise max_length."
        )
    return texts
