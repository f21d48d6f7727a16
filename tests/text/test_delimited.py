"""The rows of CSV and TSV files: none is lost or joined to another without a word."""

import csv
import io
import itertools

import pytest

from train.data.load import load
from transformer_jax.runtime.errors import DataError
from transformer_jax.text.delimited import read_rows

GIVEN = {5: '"a quote that opens here', 8: 'and one that ends a text "'}


def table(delimiter: str, texts: dict[int, str], number: int = 20) -> str:
    rows = ((texts.get(i, f"text {i}"), str(i % 2)) for i in range(1, number + 1))
    return "".join(f"{delimiter.join(row)}\n" for row in [("text", "label"), *rows])


def read(text: str, delimiter: str = "\t") -> tuple[list[list[str]], str]:
    rows, notes = read_rows(text, "a.tsv", delimiter, "label")
    return [row.fields for row in rows[1:]], "; ".join(notes)


@pytest.mark.parametrize("kind", ["tsv", "csv"])
def test_a_quote_that_opens_in_one_row_and_one_that_ends_another_join_no_rows(kind, tmp_path):
    content = table("\t" if kind == "tsv" else ",", GIVEN)
    (tmp_path / f"a.{kind}").write_text(content)
    data = load(str(tmp_path / f"a.{kind}"))
    texts = {*data.train.texts, *data.test.texts}
    assert texts == {GIVEN.get(i, f"text {i}") for i in range(1, 21)}
    (note,) = (note for note in data.notes if "quotes" in note)
    assert "one row per line: 20 rows; as in CSV they would join lines to 17 rows" in note


@pytest.mark.parametrize(("first", "last"), [*itertools.combinations((1, 2, 10, 11, 19, 20), 2)])
@pytest.mark.parametrize("order", [lambda i: i % 2, lambda i: i > 10], ids=["mixed", "sorted"])
def test_wherever_two_stray_quotes_stand_every_line_of_a_tsv_is_a_row(first, last, order):
    texts = {first: '"opens', last: 'closes"'}
    rows = [[texts.get(i, f"text {i}"), str(int(order(i)))] for i in range(1, 21)]
    found, note = read("text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
    assert found == rows and "one row per line: 20 rows" in note


@pytest.mark.parametrize(
    "text",
    ['"opens and never closes', '"one" word', 'a "word" inside', '"', '""', '""" three', "it's"],
)
def test_a_tsv_without_quoting_keeps_its_quotes_and_rows(text):
    found, note = read(table("\t", {3: text, 7: '"Fine" film'}))
    assert len(found) == 20 and found[2][0] == text and found[6][0] == '"Fine" film'
    assert "quotes are read as characters" in note


STRANGE = [
    "tab\there",
    "two\nlines",
    'a "quote"',
    '"',
    '""',
    "",
    " ",
    "a\n\nb",
    "a\tb\nc\td",
    "\r\n",
]


@pytest.mark.parametrize("delimiter", ["\t", ","])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_a_program_wrote_with_quotes_is_read_as_it_was(delimiter, quoting, end):
    rows = [[text, str(i % 2)] for i, text in enumerate([*STRANGE, "a,b\nc,d", "1,1", "x,0\ny,1"])]
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=end)
    writer.writerows([["text", "label"], *rows])
    found, note = read(file.getvalue(), delimiter)
    assert found == rows and "of 13 rows have line breaks in quoted texts" in note


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('text,label\n"a \\"word\\" in it",1\n', "line 2: ',' expected after '\"'; write a quote"),
        (
            'text,label\n"opens,1\nb,0\n',
            "line 3: unexpected end of data (in the row that begins at line 2)",
        ),
        ("text,label\na,1\n,\nb\n", "line 4: expected 2 columns as in the header, got 1"),
        ("text,label\n# a comment\n", "line 2: expected 2 columns as in the header, got 1"),
        ("text,label\na,1,\n", "line 2: expected 2 columns as in the header, got 3"),
    ],
)
def test_a_faulty_row_of_a_csv_is_an_error_that_names_its_line(text, message):
    with pytest.raises(DataError) as error:
        read(text, ",")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_neither_reading_fits_is_refused():
    texts = {**GIVEN, 15: '"a text\nof two lines"'}
    with pytest.raises(DataError, match="lines 6 to 9: one quoted text, or 4 rows with quotes"):
        read(table("\t", texts))
    with pytest.raises(DataError, match=r"lines 6 to 9: .*line 8: expected 2 columns .* got 3"):
        read(table("\t", {**GIVEN, 7: "a\ttab"}))


@pytest.mark.parametrize("blank", ["\n", "\r\n"])
def test_blank_lines_between_two_stray_quotes_do_not_hide_them(blank):
    found, note = read(table("\t", GIVEN).replace("text 6", f"{blank}text 6"))
    assert len(found) == 20 and "20 rows" in note and "skipped 1 blank line" in note


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_line_end_gives_the_same_rows_and_blank_lines_are_counted(end):
    rows = [["a\x85\u2028\x0b\x0cb", "1"], ["", "0"], [" ", "1"], ["c" * 200_000, "0"]]
    lines = ["text\tlabel", "", *("\t".join(row) for row in rows), "", ""]
    for last in ("", end):
        found, note = read(end.join(lines) + last)
        assert found == rows
        assert note == f"skipped {len(lines) - 5 - (not last)} blank lines"


def test_quotes_around_some_texts_of_a_tsv_that_need_none_are_characters():
    found, note = read(table("\t", {3: '"Great film"', 9: '""'}))
    assert found[2][0] == '"Great film"' and found[8][0] == '""' and "20 rows" in note
    found, note = read(table("\t", {3: '"Great film"', 9: '"a ""word"" in it"'}))
    assert found[2][0] == "Great film" and found[8][0] == 'a "word" in it' and not note
    found, _ = read(table(",", {3: '"Great film"'}), ",")
    assert found[2][0] == "Great film"
    assert read('"text"\t"label"\n"a"\t1\nb\t0\n') == ([["a", "1"], ["b", "0"]], "")


def test_quotes_that_surround_two_columns_of_a_tsv_without_a_header_do_not_join_them():
    lines = ["Hi.\tSalut.\tCC", '"Go away!\tVa-t\'en !"\tCC', '"Yes\tOui"\tCC', "Bye.\tAdieu.\tCC"]
    rows, notes = read_rows("\n".join(lines), "a.tsv", "\t")
    assert [row.fields for row in rows] == [line.split("\t") for line in lines]
    assert notes == ["quotes are read as characters, one row per line: 4 rows"]
    rows, notes = read_rows("\n".join([*lines, "No.\tNon."]), "a.tsv", "\t")
    assert "2 of 5 rows have line breaks or tabs in quoted texts" in notes


def test_quotes_around_the_texts_with_commas_and_no_others_are_those_of_a_spreadsheet():
    found, note = read(table("\t", {3: '"Good, but long"', 9: '"Bad, bad"'}))
    assert found[2][0] == "Good, but long" and found[8][0] == "Bad, bad" and not note
    found, note = read(table("\t", {3: '"Good, but long"', 9: "Bad, bad"}))
    assert found[2][0] == '"Good, but long"' and "quotes are read as characters" in note


def test_quotes_around_empty_texts_only_mark_them_as_empty():
    found, note = read(table("\t", {3: '""', 9: "", 12: '""'}))
    assert found[2][0] == found[8][0] == found[11][0] == "" and not note


@pytest.mark.parametrize("delimiter", ["\t", ","])
@pytest.mark.parametrize(
    "texts", [{5: ('"opens', "2"), 8: ('ends"', "0")}, {5: ("a", '"0'), 8: ("b", '1"')}]
)
def test_two_stray_quotes_join_no_rows_where_a_label_is_rare_or_quoted(texts, delimiter):
    rows = [[*texts.get(i, (f"text {i}", str(i % 2)))] for i in range(1, 21)]
    content = "".join(delimiter.join(row) + "\n" for row in [["text", "label"], *rows])
    found, note = read(content, delimiter)
    assert found == rows and "one row per line: 20 rows" in note


@pytest.mark.parametrize("delimiter", ["\t", ","])
@pytest.mark.parametrize("label", ['"1"', "1"])
def test_a_file_that_is_quoted_throughout_may_have_a_text_that_looks_like_two_rows(
    delimiter, label
):
    text = f"In the film{delimiter}1\nof the year"
    content = f'"text"{delimiter}"label"\n"{text}"{delimiter}{label}\n"dull"{delimiter}0\n'
    found, note = read(content, delimiter)
    assert found == [[text, "1"], ["dull", "0"]] and "1 of 2 rows have line breaks" in note
