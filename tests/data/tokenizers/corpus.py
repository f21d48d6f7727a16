"""Texts of many kinds and languages, the hostile ones among them, whose ids are stored beside this
file.

Whoever changes them runs `python -m tests.data.tokenizers.make` again.
"""

TEXTS = [
    # nothing, or nearly
    "",
    " ",
    "   \t \n ",
    "a",
    ".",
    # prose
    "The quick brown fox jumps over the lazy dog.",
    "Unbelievable! The tokenizer's embeddings weren't re-initialised, were they?",
    "I'd say they're WORKING; it'S SHE'LL we've 'tis rock'n'roll don’t",
    "WordPiece cuts unaffordable words into affordable pieces of words",
    "Machine learning is at the core of it: linear algebra, at the core of machine learning.",
    "No space.After a full stop,or a comma;nor here:see?Yes!",
    "state-of-the-art 'single' \"double\" “curly” ‘quotes’ «guillemets» – en — em … ellipsis",
    # spaces and ends of lines
    "  two  spaces   three\t\ttabs\n\nlines\r\nWindows\rMac  ",
    "\n\nstarts with lines",
    "trailing spaces   ",
    "no-break\u00a0space, thin\u2009space, ideographic\u3000space, narrow\u202fspace",
    "line\u2028separator, paragraph\u2029separator, next\u0085line, form\x0cfeed, vertical\x0btab",
    # what cannot be seen
    "nul\x00 bell\x07 escape\x1b delete\x7f control\x80\x9f end",
    "zero\u200bwidth space, non\u200cjoiner, joiner\u200d, word\u2060joiner, \ufeffmark",
    "soft\u00adhyphen, left\u200eright\u200f marks, \u202aembedding\u202c",
    "replacement \ufffd character\ufffd",
    "private \ue000 use, non\ufffecharacter, \U0010ffff last",
    # accents, composed and decomposed
    "café naïve Zürich São Tomé Ångström ÀÉÎÕÜ",
    "cafe\u0301 nai\u0308ve Zu\u0308rich A\u030angstro\u0308m",
    "Vie\u0323\u0302t Việt, a\u0300\u0316\u0334 piled, \u0301 alone",
    "Straße GROẞE Fußgänger Übermut",
    "İstanbul'da IŞIK ışık ığdır Diyarbakır",
    "ΑΘΗΝΑ σοφός ὀδυσσεύς ΌΣΟΣ άλφα",
    "ﬁne ﬂow oﬃce ĳssel ǆ ŉ",
    "ℌ𝔢𝔩𝔩𝔬 𝐛𝐨𝐥𝐝 ｆｕｌｌ　ｗｉｄｔｈ ½ ² ³ ① Ⅷ ㎏ ㌔",
    # scripts
    "Привет, мир! Ещё ёлка, йод. ПРИВЕТ",
    "Україна ґанок їжак",
    "你好,世界!這是一個測試。中文abc混合123",
    "東京タワーへ行きました。カタカナ ｶﾀｶﾅ ひらがな が か\u3099",
    "한국어 문장입니다. 한글 ㄱㄴㄷ",
    "𠀀𪚥 extension B, 豈 compatibility, 〇 zero, 々 again",
    "ภาษาไทยไม่มีช่องว่าง กำลัง น้ำ",
    "مرحبا بالعالم، كيف الحال؟ مُحَمَّد ١٢٣",
    "שלום עולם, מה נִשְׁמַע?",
    "नमस्ते दुनिया। क्षत्रिय हिन्दी १२३",
    "தமிழ் বাংলা తెలుగు ქართული հայերեն አማርኛ",
    "ᏣᎳᎩ ꮳꮃꭹ Ꭰ 𐐀𐐨 ẞ",
    # emoji
    "😀 😂👍 ❤ ❤️ ☺︎",
    "👩‍👩‍👧‍👦 👩🏽‍💻 👍🏿 🏳️‍🌈 🇫🇷🇩🇪 1️⃣ #️⃣ 🧑🏻‍🤝‍🧑🏿",
    "text😀text 🫠🫡🩷 a👍b",
    # numbers, code, addresses
    "3.14159 1,000,000 -42 1e-10 0x1F 50% $9.99 €5 £3 ¥100 №7 20/11/2026",
    "1234567890 12345 ٠١٢٣ ०१२",
    "https://example.com/path?query=a%20b&x=1#top mail me@example.org C:\\Users\\me",
    "def f(x: int) -> list[str]:\n    return [f'{i:>3}' for i in range(x)]  # why?",
    'if (a<b && c>=d) { s += "x\\n"; } /* end */ </p><br/>',
    "@user #hashtag ^caret~tilde`grave` |pipe| _under_score__ +plus= {curly}",
    "∀x∈ℝ: x²≥0 ⇒ √x ∑∏∫ ≠ ≈ ∞ ←→",
    # special tokens, spelled out
    "[CLS] a text [SEP] with [MASK] and [PAD] and [UNK]",
    "[mask] [Mask]masked[MASK]masked [ MASK ] [[MASK]]",
    "<s> a text </s> with <mask> and <pad> and <unk> <|endoftext|>",
    "word<mask>word <mask>.<mask> <Mask> < mask > <s><s></s>",
    "two<|endoftext|>texts <|endoftext|> <|ENDOFTEXT|> <|endoftext",
    "##ing ## Ġthe ▁the ▁ <0x41> <0xE4> Ċ",
    # words too long for WordPiece: 100 is its last
    "x" * 99 + " " + "x" * 100 + " " + "x" * 101,
    "long" * 50,
    "ab" * 5000,
    "é" * 100 + " " + "e\u0301" * 100 + " !" + "-" * 60,
]

# First, second, max_length (None: nothing is cut).
PAIRS = [
    ("Is it raining?", "Yes, it is raining again.", None),
    ("", "The first is empty.", None),
    ("The second is empty.", "", None),
    ("", "", None),
    ("What is at the core of machine learning?", "Linear algebra.", 12),
    ("Linear algebra.", "What is at the core of machine learning?", 12),
    ("one two three four five six", "one two three four five six", 10),
    ("one two three four five six", "one two three four five six", 11),
    ("one two three four five six seven eight", "one two three four five six", 11),
    ("one two three four five six", "one two three four five six seven eight", 11),
    ("one two", "one two three four five six seven eight", 13),
    ("the lazy dog jumps over the quick brown fox", "the dog", 7),
    ("[CLS] spelled <s> out [SEP]", "</s> here, too <mask> [MASK]", 14),
    ("你好,世界", "Привет 👍🏿 мир", 16),
]

# What the small vocabularies are learned from, beside the texts above.
PROSE = """
the of and to in is it that for was on are with as his they at be this from have or by one had not but
what all were when we there can an your which their said if do will each about how up out them then she many
some so these would other into has more her two like him see time could no make than first been its who now
people my made over did down only way find use may water long little very after words called just where most
know get through back much before go good new write our used me man too any day same right look think also
around another came come work three word must because does part even place well such here take why things
help put years different away again off went old number great tell men say small every found still between
name should home big give air line set own under read last never us left end along while might next sound
below saw something thought both few those always looked show large often together asked house world going
want school important until form food keep children feet land side without boy once animals life enough took
sometimes four head above kind began almost live page got earth need far hand high year mother light parts
country father let night following picture being study second eyes soon times story boys since white days
ever paper hard near sentence better best across during today others however sure means knew its try told
young miles sun ways thing whole hear example heard several change answer room sea against top turned learn
point city play toward five using himself usually machine learning linear algebra core model token embedding
attention transformer vocabulary frequency quick brown fox jumps lazy dog unaffordable affordable pieces
Straße café naïve Zürich привет мир ещё 世界 你好 東京 한국어 مرحبا नमस्ते ภาษา ab abab abababab abababababababab
""".split("\n")
