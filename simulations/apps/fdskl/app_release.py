"""Compare the release of this app with the installed one, before anything else is imported.

An older release lacks names that the app imports. The error would not say which side is older.
"""

import fedkern_flwr

if not hasattr(fedkern_flwr, "check_app"):  # releases before 0.2 cannot compare
    raise ImportError(
        "[fedkern] RefusedError: the app is of fedkern-flwr 0.2, and "
        f"{fedkern_flwr.__version__} is installed; the installed one is older: "
        "`pip install --upgrade fedkern-flwr` there [FK-MESSAGE-VERSION]"
    )
fedkern_flwr.check_app("0.2")
