"""Wikipedia's markup as plain text."""

from fsdp_lab.data.sources.wikipedia.wikitext import plain_text


def test_wikitext() -> None:
    markup = (
        "{{Infobox|x={{nested}}}}'''Bold''' [[link|shown]] and [[plain]]<ref>gone</ref> text.<!-- no -->\n"
        "[[File:a.jpg|thumb|A [[caption]] here]]\n== Heading ==\n* item [http://a.b site]\n\n\n\n"
        "{| class=x\n|-\n| cell\n|}\nLast &amp; least.\n== References ==\ngone"
    )
    assert plain_text(markup) == "Bold shown and plain text.\n\nHeading\nitem site\n\nLast & least."
