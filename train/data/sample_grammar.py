"""The grammar of the built-in sample: opinions, aspects of a film, neutral phrases, and frames.

Every frame must keep one rule, on which the claims of `train.data.sample_reviews` depend: both
opinions follow the same kind of verb and precede a phrase from the same list, so that no pair of
neighbouring words tells which of the two opinions is the verdict."""

from collections.abc import Mapping

PRAISE = """
beautiful brilliant captivating charming clever compelling delightful elegant engaging enjoyable
excellent fantastic flawless gripping impressive lovely magnificent memorable outstanding perfect
powerful refreshing remarkable splendid stunning superb terrific thrilling touching wonderful
""".split()

BLAME = """
abysmal annoying appalling atrocious awful bland boring clumsy disappointing dismal dreadful
dreary dull feeble flat forgettable horrible lame laughable lazy lifeless mediocre painful pathetic
pointless shallow sloppy tedious terrible tiresome
""".split()

SINGULAR = """
acting|action|animation|atmosphere|camerawork|casting|chemistry|choreography|cinematography|climax|
comedy|dialogue|direction|drama|editing|ending|finale|humour|leading man|lighting|makeup|middle act|
mood|music|narration|opening|pacing|photography|plot|premise|production design|romance|score|
screenplay|script|setting|sound design|soundtrack|story|supporting cast|suspense|villain|voice work
""".replace("\n", "").split("|")

PLURAL = """
action scenes|battles|car chases|characters|costumes|crowd scenes|dance numbers|effects|fight scenes|
flashbacks|jokes|locations|love scenes|performances|puppets|quiet moments|sets|songs|stunts|subplots|
twists
""".replace("\n", "").split("|")

# {name} is replaced by one entry of the list of that name, and [a|b] by one of its alternatives,
# until none is left; an entry that is listed twice is drawn twice as often.
GRAMMAR: Mapping[str, list[str]] = {
    # Before an opinion: the same list for both opinions of a frame.
    "deg": ["truly", "really", "simply"],
    "was": ["was", "was", "was {deg}"],
    "were": ["were", "were", "were {deg}"],
    "be": ["was", "felt", "seemed"],
    "view": ["view", "opinion", "judgement", "book"],
    # After an opinion: one shared list, so the word after an adjective never tells whether it is
    # the verdict.
    "tail": [
        "from start to finish", "from the first scene to the last", "in nearly every scene",
        "for most of its two hours", "to my eyes and ears", "all the way through", "at every turn",
        "throughout the second half", "on every level", "scene after scene", "minute after minute",
        "in a way I had not expected", "for an entire evening", "as far as I could tell",
        "to a degree I rarely see", "with hardly a pause", "by any standard", "by anyone's measure",
        "more often than not", "just as I remember it", "right up to the credits", "hour after hour",
        "even on a small screen", "under the bright lights of the [theatre|festival|gala]",
        "whenever the camera [moved|stopped|lingered]", "well beyond the usual for a {genre}",
        "on [Monday|Tuesday|Thursday|Saturday] night", "in front of a [full|half empty] house",
        "over its {number} minutes", "in the {ordinal} reel", "for this kind of {genre}",
    ],
    "version": [
        "in this version", "in this cut", "on the big screen", "at this length", "in the dubbed print",
        "with an audience", "on a laptop", "at home", "with subtitles", "on the night we saw it",
        "under this director", "with this cast", "in the restored print", "in its final form",
        "on television", "on the train", "in the {ordinal} row", "with headphones on",
    ],
    "aside": [
        "when all is said and done", "looking back on it now", "as the credits rolled",
        "once the lights came up", "after a night's sleep", "on reflection", "thinking it over",
        "and I say this as a fan of every {genre}", "having slept on it", "now that I am home again",
        "and {person} agrees with me", "for what it is worth", "a week later", "sitting there",
    ],
    "verdict": [
        "and that [is what counts|is what decides it|is what stays|weighs more] {forme}",
        "and that is the part that counts {forme}", "and that settled the matter {forme}",
        "which is what I will remember about this {film}", "which is why I am writing this review",
        "and my rating goes by that",
    ],
    "forme": ["for me", "in my book", "with me", "in the end", "as far as I am concerned"],
    "film": ["film", "movie", "picture", "feature"],
    "person": [
        "my brother", "my sister", "my father", "my mother", "my wife", "my husband", "my neighbour",
        "my cousin", "my roommate", "my colleague", "my uncle", "my aunt", "my teacher", "my dentist",
        "my best friend", "my daughter", "my son", "my boss", "my grandmother", "my barber",
    ],
    "they": [
        "my parents", "my friends", "my neighbours", "the critics", "my colleagues", "the papers",
        "the people behind us", "my brothers", "the fans", "my cousins", "the students", "the judges",
    ],
    "the": ["the plot", "the acting", "the music", "the {film}", "the {genre}", "the script", "the ending"],
    "critic": [
        "{person}", "{person}", "the local paper", "the man in the next seat", "the programme notes",
        "the woman at the ticket desk", "the host of the radio show", "the critic of our weekly",
        "the blurb on the box", "the student behind us", "the online forum", "the television guide",
    ],
    "said": ["said", "wrote", "claimed", "insisted", "argued", "announced", "swore", "repeated"],
    "source": ["novel", "play", "comic", "series", "short story", "memoir", "musical", "poem"],
    "earlier": ["first part", "original", "trailer", "prequel", "previous episode", "older version"],
    "genre": [
        "western", "thriller", "comedy", "drama", "musical", "melodrama", "mystery", "road movie",
        "war film", "spy story", "ghost story", "fantasy", "documentary", "satire", "heist film",
        "courtroom drama", "space opera", "period piece", "family film", "detective story",
    ],
    "number": ["ninety", "a hundred", "eighty", "seventy", "eighty five", "a hundred and ten"],
    "ordinal": ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"],
    "country": [
        "Norway", "Spain", "Canada", "Mexico", "Ireland", "Poland", "Japan", "Brazil", "Italy",
        "Morocco", "Iceland", "Hungary", "Chile", "Scotland", "Vietnam", "Portugal", "Greece",
    ],
    "town": [
        "village", "harbour town", "mining camp", "boarding school", "desert motel", "hospital",
        "lighthouse", "railway station", "suburb", "monastery", "circus", "farm", "newsroom", "prison",
    ],
    "hero": [
        "baker", "sailor", "widow", "lawyer", "soldier", "violinist", "farmer", "journalist",
        "detective", "nurse", "boxer", "gardener", "pilot", "clerk", "fisherman", "translator",
        "carpenter", "chemist", "postman", "librarian",
    ],
    "errand": [
        "looks for a lost letter", "returns after the war", "inherits a hotel", "follows a stranger",
        "buys a horse", "waits for a train", "moves to the city", "finds an old map",
        "crosses the border", "opens a restaurant", "raises three children", "shares a secret",
        "teaches a class", "repairs a boat", "hides from the police", "meets a twin",
    ],
    "occasion": [
        "last week", "on a Sunday afternoon", "late at night", "during the holidays", "on a long flight",
        "at the local festival", "at a matinee", "in a small cinema", "over the weekend", "on cable",
        "last summer", "at the student union", "on an old cassette", "after dinner", "on my birthday",
    ],
    "closing": [
        "I [saw|watched|rented|caught|borrowed] this {genre} {occasion} with {person}.",
        "We [saw|watched|picked|streamed] this {genre} {occasion}.",
        "This is a {genre} about a {hero} who {errand} in a {town}.",
        "A {hero} {errand}, and a {town} in {country} is where it happens.",
        "Set in {country}, this {genre} follows a {hero} who {errand}.",
        "The story takes us to a {town} where a {hero} {errand}.",
        "{person} gave me the disc of this {genre} {occasion}.",
        "This {genre} was shot in {country} and runs for {number} minutes.",
        "It runs for {number} minutes.", "It was shot in {country}.", "The disc has no extras.",
        "I have now seen it [twice|three times].", "There is a scene after the credits.",
        "The lead plays a {hero}.", "A sequel is planned for next year.", "It is set in a {town}.",
        "The director also made a {genre} in {country}.", "{person} slept on the way home.",
        "The print we saw came from {country}.", "The writer once worked as a {hero}.",
    ],
}  # fmt: skip

# Frames have two opinions, first {x}, then {y}. In *_FIRST the first is the reviewer's verdict on
# the film, in *_SECOND the second. {a} and {b} are two different aspects with their verb ("the plot
# was").
#
# NEAR: the cue that tells the verdict from the other opinion ("not", or whose view it is) is two
# words before the adjective. A model learns these first, and from them which adjectives praise.
NEAR_SECOND = [
    "It was not {deg} {x} {version}; it was {deg} {y} {version}.",
    "The {film} was not {deg} {x} {version}, it was {deg} {y} {version}.",
    "{the} was not {deg} {x} {version}, as {they} will have to admit; it was {deg} {y} {version}.",
    "I can say that {the} was not {deg} {x} {version}, and that it was {deg} {y} {version}.",
    "{they} and I do not agree: {the} was in their {view} {x} {tail}; it was in my {view} {y} {tail}.",
    "It was in their {view} {x} {tail}, so {they} told me; but it was in my {view} {y} {tail}.",
]  # fmt: skip

NEAR_FIRST = [
    "It was {deg} {x} {version}; it was not {deg} {y} {version}.",
    "The {film} was {deg} {x} {version}, and not {deg} {y} {version}.",
    "{the} was {deg} {x} {version}, as {they} will have to admit; it was not {deg} {y} {version}.",
    "I can say that {the} was {deg} {x} {version}, and that it was not {deg} {y} {version}.",
    "It was in my {view} {x} {tail}, although it was in their {view} {y} {tail}, as {they} told me.",
    "{they} and I do not agree: {the} was in my {view} {x} {tail}; it was in their {view} {y} {tail}.",
]  # fmt: skip

# FAR: the whole clause has to be read. Every frame has "but" or "although"; the clause after "but"
# is the verdict, the clause after "although" is not.
FAR_SECOND = [
    # contrast
    "{a} {x} {tail}, but {b} {y} {tail}, {verdict}.",
    "{a} {x} {tail}, but, {aside}, {b} {y} {tail}, {verdict}.",
    "I admit that {a} {x} {tail}, but I found that {b} {y} {tail}, {verdict}.",
    "Granted, {a} {x} {tail}, but {b} {y} {tail}, {verdict}.",
    "Although {a} {x} {tail}, {b} {y} {tail}, {verdict}.",
    "Although I admit that {a} {x} {tail}, I came out convinced that {b} {y} {tail}, {verdict}.",
    # time: the later impression holds
    "At first I thought that the {film} {was} {x} {tail}, but by the end I knew that it {was} {y} {tail}.",
    "I had expected to report that it {was} {x} {tail}, but I now report that it {was} {y} {tail}.",
    # who said it: the reviewer's word holds
    "{critic} {said} that the {film} {was} {x} {tail}, but I thought that it {was} {y} {tail}.",
    "{critic} and {person} both {said} that {a} {x} {tail}, but I myself felt that {b} {y} {tail}.",
    "Although {critic} {said} that it {was} {x} {tail}, I know that it {was} {y} {tail}.",
    # comparison: the review is of the film
    "The {source} {be} {x} {tail}, but this is about the film, and the {film} {be} {y} {tail}.",
    "I know both: the {source} {be} {x} {tail}, but the {film} {be} {y} {tail}.",
]  # fmt: skip

FAR_FIRST = [
    "{a} {x} {tail}, {verdict}, although {b} {y} {tail}.",
    "{a} {x} {tail}, {verdict}, although, {aside}, {b} {y} {tail}.",
    "I found that {a} {x} {tail}, {verdict}, although I admit that {b} {y} {tail}.",
    "By the end I knew that the {film} {was} {x} {tail}, although at first I thought that it {was} {y} {tail}.",
    "I thought that the {film} {was} {x} {tail}, although {critic} {said} that it {was} {y} {tail}.",
    "I myself felt that {a} {x} {tail}, although {critic} {said} that {b} {y} {tail}.",
    "I know both: the {film} {be} {x} {tail}, although the {source} {be} {y} {tail}.",
]  # fmt: skip
