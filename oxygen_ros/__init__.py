"""One inference node for vision-language-action models: one prefill per frame for every task."""

from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

# The generated messages may lie in another folder of the path than these modules.
__path__ = extend_path(__path__, __name__)

if TYPE_CHECKING:
    msg: Any
