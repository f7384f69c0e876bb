"""Say which is older, app or package, before an import fails for it."""

import fedkern_flwr

if not hasattr(fedkern_flwr, "check_app"):  # releases before 0.2 cannot compare
    told = f"the app is of fedkern-flwr 0.2, and {fedkern_flwr.__version__} is installed"
    told += "; the installed one is older: `pip install --upgrade fedkern-flwr` there"
    raise ImportError(f"[fedkern] RefusedError: {told} [FK-MESSAGE-VERSION]")
fedkern_flwr.check_app("0.2")
