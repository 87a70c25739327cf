"""Distinct English sentences of chosen lengths, made from words and rules written for Regard.

The rules form a small grammar without recursion, so the number of ways to say something in exactly
n characters can be counted: count(a b, n) = sum_i count(a, i) count(b, n - i). A sentence of a
wanted length is then drawn top-down, and never has to be cut or thrown away for its length.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from random import Random

from regard.errors import UserError

# A longer text is several sentences in a row: people do not write clauses without end.
LONGEST_SENTENCE = 90
SHORTEST_PIECE = 25
SHORTEST = 3  # "Hi."
BARE = 0.4  # share of texts that may do without their last full stop
PATIENCE = 500  # vain draws in a row at one length, after which it counts as used up

# Words by kind; an underscore is a space. `{kind:a}` and `{kind:an}` in a rule are the words that
# follow "a" and "an": they are told apart by first letter, so no "hour" and no "useful" here.
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
    "feeling": """alone angry asleep awake bored brave busy calm cold curious early happy hungry ill
        late lost proud quiet ready sad safe shy sorry surprised thirsty tired worried""",
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

# One and many (`{animal}`, `{animals}`); the plural is spelled out where it is not regular.
NOUNS = {
    "person": """actor artist aunt baker boy child:children cook doctor driver engineer farmer
        friend gardener girl librarian neighbour nurse pilot poet singer student teacher uncle""",
    "animal": """bear bee cat cow dog donkey duck elephant fox goat goose:geese hen horse mouse:mice
        otter owl parrot pig pony rabbit sheep:sheep squirrel tiger turtle""",
    "thing": """atlas basket bell bicycle blanket book box camera candle clock coat cup envelope
        guitar hat jar key kite lamp laptop letter map newspaper pen ring scarf:scarves umbrella""",
}

# Verbs by what they go with, as base:past:-ing; what is regular is left out.
VERBS = {
    "rest": "eat:ate drink:drank hide:hid jump play run:ran:running sit:sat:sitting sleep:slept",
    "act": "cook cry dance laugh paint read:read sing:sang smile study talk work write:wrote "
    "play_chess watch_TV tell_a_joke:told speak_French:spoke learn_English play_the_piano",
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

# What may be said; `|` stands between ways to say it. FORM is each of FORMS in turn.
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
    """Several ways to say something: each is a text, or one expression followed by another."""

    def __init__(self, ways: Sequence["str | tuple[Expression, Expression]"], limit: int):
        self.ways = ways
        self.counts = [sum(many for many, _ in self.options(n)) for n in range(limit + 1)]
        self.tables: dict[int, tuple[list[Option], list[float]]] = {}

    def options(self, length: int) -> Iterator[tuple[int, "Option"]]:
        """Every way and every place to cut it in two, after the number of texts it gives."""
        for way in self.ways:
            if not isinstance(way, str):
                first, second = way
                for cut, many in enumerate(first.counts[: length + 1]):
                    if many and second.counts[length - cut]:
                        yield many * second.counts[length - cut], (first, cut, second)
            elif len(way) == length:
                yield 1, way

    def draw(self, length: int, random: Random) -> str:
        """One text of exactly `length` characters; `counts[length]` must not be 0."""
        if length not in self.tables:
            counted = list(self.options(length))
            self.tables[length] = [option for _, option in counted], shares(n for n, _ in counted)
        options, bounds = self.tables[length]
        option = options[bisect_right(bounds, random.random())]
        if isinstance(option, str):
            return option
        first, cut, second = option
        return first.draw(cut, random) + second.draw(length - cut, random)


Option = str | tuple[Expression, int, Expression]


def shares(counts: Iterable[int]) -> list[float]:
    """Inner bounds that cut [0, 1) into parts proportional to the fourth roots of counts.

    The root lets rare kinds of sentence be heard beside those that can be said in a million ways.
    """
    # Integer roots and one division each: the same floats on every platform.
    sums = list(accumulate(math.isqrt(math.isqrt(count << 24)) for count in counts))
    return [part / sums[-1] for part in sums[:-1]]


def grammar(limit: int) -> Expression:
    """The expression of one sentence, for lengths up to `limit`."""
    lists = {kind: text.split() for kind, text in WORDS.items()}
    for kind, text in NOUNS.items():
        nouns = [noun.split(":") for noun in text.split()]
        lists[kind] = [noun[0] for noun in nouns]
        lists[f"{kind}s"] = [noun[1] if noun[1:] else with_s(noun[0]) for noun in nouns]
    for kind, text in VERBS.items():
        for form, *verbs in zip(FORMS, *map(conjugate, text.split()), strict=True):
            lists[f"{kind}.{form}"] = verbs
    known: dict[str, Expression] = {}
    for kind, words in lists.items():
        words = [word.replace("_", " ") for word in words]
        known[kind] = Expression(words, limit)
        known[f"{kind}:a"] = Expression([word for word in words if word[0] not in "aeiou"], limit)
        known[f"{kind}:an"] = Expression([word for word in words if word[0] in "aeiou"], limit)
    for name, text in RULES.items():
        for form in FORMS if "FORM" in name else ("",):
            ways = [sequence(way, known, limit) for way in text.replace("FORM", form).split("|")]
            known[name.replace("FORM", form)] = Expression(ways, limit)
    return known["sentence"]


def with_s(word: str) -> str:
    """The plural of a noun, or the she/he form of a verb: cats, boxes, carries."""
    if re.search("[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search("(s|x|ch|sh|o)$", word) else "s")


def conjugate(verb: str) -> list[str]:
    """A row of VERBS in its four FORMS: "tell_a_joke:told" inflects its first word."""
    whole, *given = verb.split(":")
    base, *rest = whole.split("_")
    past = with_s(base).removesuffix("s").removesuffix("e") + "ed"
    doing = base + "ing" if re.search("ee$|[^e]$", base) else base[:-1] + "ing"
    forms = [base, with_s(base), *(given + [past, doing][len(given) :])]
    return ["_".join([form, *rest]) for form in forms]


def sequence(way: str, known: dict[str, Expression], limit: int) -> tuple[Expression, Expression]:
    """The start and the rest of one way to say something, such as "{who} {did} {where}"."""
    pieces = re.findall(r"\{([^}]+)\}|([^{}]+)", way)
    first, *more = [known[kind] if kind else Expression([text], limit) for kind, text in pieces]
    rest = Expression([""], limit)
    for part in reversed(more):
        rest = Expression([(part, rest)], limit)
    return first, rest


def clumsy(sentence: str) -> bool:
    """Whether a name or a longer word is said twice ("Ann met Ann")."""
    words = re.findall(r"[A-Z][\w']+|[\w']{4,}", sentence)
    return len(set(words)) < len(words)


def passage(length: int, sentence: Expression, random: Random) -> str:
    """One sentence of `length` characters, or several in a row if that is long."""
    said = []
    while length >= SHORTEST:
        piece = length
        if length > LONGEST_SENTENCE:
            most = min(LONGEST_SENTENCE, length - 1 - SHORTEST_PIECE)
            piece = SHORTEST_PIECE + int(random.random() * (most - SHORTEST_PIECE + 1))
        # People leave the last full stop out: a model must not learn to put one everywhere.
        bare = piece == length and random.random() < BARE
        text = sentence.draw(piece + bare, random)
        if bare and not text.endswith("."):
            continue
        text = text.removesuffix(".") if bare else text
        if not clumsy(text):
            said.append(text[0].upper() + text[1:])
            length -= piece + 1
    return " ".join(said)


def sentences(
    count: int, min_length: int, max_length: int, seed: int, keep: Callable[[str], bool] = bool
) -> list[str]:
    """`count` English sentences, distinct even in lower case, lengths spread evenly over the range.

    A length that runs out leaves its share to the others. `keep` may refuse sentences. The same
    arguments give the same list on every platform.
    """
    if not SHORTEST <= min_length <= max_length:
        raise UserError(
            f"expected {SHORTEST} <= min_length <= max_length for made sentences; got min_length="
            f"{min_length}, max_length={max_length}. Change the one that is out of range."
        )
    if count < 0:
        raise UserError(f"expected 0 or more sentences; got {count}. Ask for a positive number.")
    random, sentence = Random(seed), grammar(min(max_length, LONGEST_SENTENCE) + 1)
    vain = dict.fromkeys(range(min_length, max_length + 1), 0)
    lengths, seen, made = list(vain), set(), []
    while len(made) < count and lengths:
        length = lengths[int(random.random() * len(lengths))]
        text = passage(length, sentence, random)
        if text.lower() not in seen and keep(text):
            seen.add(text.lower())
            made.append(text)
            vain[length] = 0
        else:
            vain[length] += 1
            if vain[length] == PATIENCE:
                lengths.remove(length)
    if len(made) < count:
        raise UserError(
            f"expected {count} distinct sentences of {min_length} to {max_length} characters; only "
            f"about {len(made)} can be made. Ask for fewer, or raise max_length."
        )
    return made
