"""The one exception that means: the user can put this right."""


class UserError(Exception):
    """A bad file, parameter or machine. The message is one sentence that names it and says what to do.

    Entry points print the message without a traceback and exit with code 2; every other exception is our own
    mistake and keeps its traceback.
    """
