"""Names of parametrized tests without memory addresses: parallel workers must agree on them."""

import re


def pytest_itemcollected(item):
    item._nodeid = re.sub(r" at 0x[0-9a-f]+", "", item.nodeid)
