"""Functions that run a command of experiments, and read a table of a page."""


def run(app, *arguments):
    """Run a command, and let its exceptions through."""
    return app([str(word) for word in arguments], standalone_mode=False)


def cells_of(*texts):
    """Return the cells of each row of Markdown tables, their headers included."""
    lines = [line for text in texts for line in text.splitlines() if "|" in line]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [row for row in rows if any(cell.strip("-:") for cell in row)]
