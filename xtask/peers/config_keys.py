"""Writes the lists of configuration keys that the readers of `config.json` consult.

The lists come from the installed `transformers`: the names and defaults of every configuration
class, and whether the code of the family reads a key. Nothing is listed by hand, so a new family
begins with its keys. All decoders are listed, so adding one does not change the file. PyTorch is not
needed.

    python xtask/peers/config_keys.py            # write the file
    python xtask/peers/config_keys.py --check    # compare the file; exit code 1 if it differs

The file has one JSON object a line. The first line has the version, the keys of the base class
(`base`), the keys that change parts of any model (`overrides`), the keys that each type of rotary
scaling reads (`rope`), and the keys with defaults that the masks of any decoder read (`shared`). Each other line has one `model_type` that a reader of Tercet names, or
that is a decoder:

    keys      names and defaults of the keys that the family's code reads
    unread    keys of the class that only training or nothing reads
    aliases   other names of keys
    rope      keys of `rope_parameters` that the family's own code reads
    rotary    `rope_parameters` of a file without rotary keys, unless its base is 10000
"""

import argparse
import ast
import dataclasses
import functools
import inspect
import json
import pathlib
import re
import sys

import transformers
from transformers import GenerationConfig
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_rope_utils import RopeParameters
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

ROOT = pathlib.Path(transformers.__file__).parent
TARGET = pathlib.Path(__file__).parents[2] / "crates/tercet-networks/src/config/transformers_keys.jsonl"

# Names of functions that only create weights, check values or write files: keys read there do not count.
WITHOUT_INFLUENCE = re.compile(r"^(_init_weights|validate_.*|_validate_.*|to_dict|to_diff_dict|save_.*)$")

# Names of keys that only training reads.
OF_TRAINING = re.compile(
    r"drop(out|_path|_rate)?(_|$)|_?pdrop$|layerdrop|initializer|init_std|(^|_)loss(_|$)|jitter|label_smoothing"
    r"|mask_(time|feature)_|spec_augment|^output_|^use_cache$"
)

# Modules that read configurations on behalf of all families.
SHARED = [
    "modeling_rope_utils.py",
    "masking_utils.py",
    "cache_utils.py",
    "modeling_layers.py",
    "modeling_utils.py",
    "integrations/moe.py",
    "integrations/sdpa_attention.py",
    "integrations/eager_attention.py",
]


def is_config(node):
    """Whether an expression names a configuration: `config`, `self.config`, `text_config`."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name.endswith(("config", "cfg"))


def literal(node):
    """The value of a literal expression that JSON can hold, else None."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if isinstance(value, (bool, int, float, str, list, dict)) else None


class Reads(ast.NodeVisitor):
    """Collects the keys that a module reads from configurations."""

    def __init__(self, of_self=False):
        self.of_self = of_self
        self.names = set()
        self.defaults = {}
        self.kwargs = {}
        self.strings = set()

    def visit_FunctionDef(self, node):
        if not WITHOUT_INFLUENCE.match(node.name):
            self.generic_visit(node)

    def owner(self, node):
        own = self.of_self and isinstance(node, ast.Name) and node.id == "self"
        return own or is_config(node)

    def visit_Attribute(self, node):
        if isinstance(node.ctx, ast.Load) and self.owner(node.value):
            self.names.add(node.attr)
        self.generic_visit(node)

    def visit_Constant(self, node):
        if isinstance(node.value, str) and node.value.isidentifier():
            self.strings.add(node.value)

    def visit_Expr(self, node):
        # Skip docstrings: the names in them are not reads.
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Call(self, node):
        called = node.func
        texts = [a.value for a in node.args[:2] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        name = getattr(called, "id", getattr(called, "attr", ""))
        if name in ("getattr", "hasattr") and len(node.args) > 1 and texts and self.owner(node.args[0]):
            self.names.add(texts[-1])
            if name == "hasattr":
                # `hasattr` does not read the value of the key.
                self.generic_visit(node)
                return
            self.defaults.setdefault(texts[-1], literal(node.args[2]) if len(node.args) > 2 else None)
        of_kwargs = isinstance(called, ast.Attribute) and getattr(called.value, "id", "") == "kwargs"
        if of_kwargs and name in ("pop", "get", "setdefault") and texts:
            self.kwargs.setdefault(texts[0], literal(node.args[1]) if len(node.args) > 1 else None)
        self.generic_visit(node)


@functools.cache
def reads_of(path, of_self=False):
    found = Reads(of_self)
    found.visit(ast.parse(pathlib.Path(path).read_text()))
    return found


def finite(value):
    """A value with infinities as files of transformers have them."""
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return {"__float__": "Infinity"} if value == float("inf") else value


def plain(value):
    """A default as JSON, or None for a computed one."""
    if isinstance(value, dataclasses.Field):
        value = None if value.default is dataclasses.MISSING else value.default
    try:
        return json.loads(json.dumps(finite(value)))
    except (TypeError, ValueError):
        return None


def own_fields(cls):
    """The fields of a configuration class and their defaults."""
    fields = {field.name: plain(field) for field in dataclasses.fields(cls)}
    # Classes with their own constructor declare fields only as its parameters.
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and name != "self":
            default = None if parameter.default is parameter.empty else parameter.default
            fields.setdefault(name, plain(default))
    return fields


def named_by_readers():
    """The words in quotation marks in the sources of the readers, among them all `model_type`s."""
    texts = [path.read_text().split("#[cfg(test)]")[0] for path in TARGET.parent.rglob("*.rs")]
    sources = [re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE) for text in texts]
    return {word for source in sources for word in re.findall(r'"([a-z0-9_-]+)"', source)}


def mapping_names(suffix):
    """The pairs of `MODEL_FOR_{suffix}_MAPPING_NAMES`, read from the source: importing it needs PyTorch."""
    name = f"MODEL_FOR_{suffix}_MAPPING_NAMES"
    body = ast.parse((ROOT / "models/auto/modeling_auto.py").read_text()).body
    [call] = [node.value for node in body if isinstance(node, ast.Assign) and node.targets[0].id == name]
    return dict(ast.literal_eval(call.args[0]))


def decoders():
    """Every `model_type` of a decoder that is no part of an encoder-decoder model and no masked model."""
    causal = mapping_names("CAUSAL_LM").items()
    found = {name for name, cls in causal if isinstance(cls, str) and cls.endswith("ForCausalLM")}
    return found.difference(mapping_names("SEQ_TO_SEQ_CAUSAL_LM"), mapping_names("MASKED_LM"))


def classes():
    """The configuration classes of readers and decoders by `model_type`, those of parts included."""
    found, queue = {}, []
    for name in CONFIG_MAPPING_NAMES:
        try:
            queue.append(CONFIG_MAPPING[name])
        except (ImportError, AttributeError, ValueError):
            continue
    while queue:
        cls = queue.pop()
        if cls is PreTrainedConfig or cls.__name__ == "AutoConfig":
            continue
        name = cls.model_type or cls.__name__
        if name in found:
            continue
        found[name] = cls
        queue.extend(getattr(cls, "sub_configs", {}).values())
    wanted = named_by_readers() | decoders()
    return {name: cls for name, cls in sorted(found.items()) if name in wanted}


def entry(cls, base, shared):
    """The line of a configuration class."""
    file = pathlib.Path(inspect.getfile(cls))
    modeling = [reads_of(p) for p in sorted(file.parent.glob("modeling_*.py"))]
    own = reads_of(file, True)
    everywhere = set(shared.names) | set(own.names)
    for module in modeling:
        everywhere |= module.names
    fields = own_fields(cls)
    for name, default in own.kwargs.items():
        fields.setdefault(name, default)
    for module in modeling:
        for name, default in module.defaults.items():
            if not name.startswith("_") and not hasattr(PreTrainedConfig, name):
                fields.setdefault(name, default)
    kwargs = set(own.kwargs)
    if "rope_parameters" in fields:
        # Older files have `rope_scaling` and `rope_theta` at the top level.
        for name in ("rope_scaling", "rope_theta"):
            fields.setdefault(name, None)
            kwargs.add(name)
    aliases = dict(sorted(cls.attribute_map.items()))
    # Code may read a key by one of its aliases.
    names = {name: {name} | {alias for alias, of in aliases.items() if of == name} for name in fields}
    read, unread = {}, []
    for name, default in sorted(fields.items()):
        if name in base and default == base[name] and name not in kwargs:
            continue
        if (names[name] & everywhere or name in kwargs) and not OF_TRAINING.search(name):
            read[name] = default
        else:
            unread.append(name)
    rope_keys = set(RopeParameters.__annotations__)
    rope = sorted(rope_keys & (own.strings.union(*(module.strings for module in modeling)) - set(fields)))
    line = {"keys": read, "unread": unread, "aliases": aliases, "rope": rope, "rotary": rotary_of(cls)}
    return {key: value for key, value in line.items() if value}


def rotary_of(cls):
    """The rotary parameters of a configuration without rotary keys, or None if they are the usual ones."""
    try:
        found = plain(cls().rope_parameters)
    except Exception:  # A class may need sizes that have no defaults.
        return None
    found = found.get("full_attention", found) if isinstance(found, dict) else None
    usual = not found or (found.get("rope_theta") == 10000 and found.get("rope_type") == "default")
    if usual:
        return None
    # `transformers` keeps the types of layers in a set, whose order differs from run to run.
    if all(isinstance(value, dict) for value in found.values()):
        return dict(sorted(found.items()))
    # The rotated part of a head is a key of its own in older files, which readers know.
    return {name: value for name, value in found.items() if name != "partial_rotary_factor"}


def rope_types():
    """The keys that each type of rotary scaling reads."""
    tree = ast.parse((ROOT / "modeling_rope_utils.py").read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    table = next(
        node.value
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        and "ROPE_INIT_FUNCTIONS" in ast.dump(node.targets[0] if isinstance(node, ast.Assign) else node.target)
    )
    keys = set(RopeParameters.__annotations__)
    found = {}
    for name, function in zip(table.keys, table.values):
        reads = Reads()
        for statement in functions[function.id].body:
            reads.visit(statement)
        found[name.value] = sorted(reads.strings & keys)
    return found


def base_keys():
    """The keys of the base class: its fields, and the keywords that its constructor takes."""
    fields = {field.name: plain(field) for field in dataclasses.fields(PreTrainedConfig)}
    tree = ast.parse((ROOT / "configuration_utils.py").read_text())
    constructor = next(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__post_init__"
    )
    reads = Reads()
    reads.visit(constructor)
    for name, default in reads.kwargs.items():
        fields.setdefault(name, default)
    return fields


def shared_keys():
    """The keys with a default that the masks of a decoder read, whether its class has them or not.

    A default of None means that only families with the key are concerned, and their classes define it.
    """
    found = reads_of(ROOT / "masking_utils.py").defaults
    return {name: default for name, default in sorted(found.items()) if default is not None}


def lines():
    base = base_keys()
    shared = Reads()
    for path in SHARED:
        if (ROOT / path).exists():
            more = reads_of(ROOT / path)
            shared.names |= more.names
    # Keys of the base class that override other keys for single layers.
    overrides = sorted(name for name in base if name.startswith("per_layer"))
    yield {
        "transformers": transformers.__version__,
        "base": sorted(set(base) - set(overrides)),
        "overrides": overrides,
        "rope": rope_types(),
        "shared": shared_keys(),
    }
    for name, cls in classes().items():
        yield {"model_type": name, **entry(cls, base, shared)}
    defaults = {name: None for name in GenerationConfig().to_dict() if not name.startswith("_")}
    defaults |= GenerationConfig._get_default_generation_params()
    keys = {name: plain(default) for name, default in sorted(defaults.items()) if name not in ("transformers_version",)}
    yield {"model_type": "GenerationConfig", "keys": keys}
    for extractor in (transformers.Wav2Vec2FeatureExtractor, transformers.WhisperFeatureExtractor):
        values = extractor().to_dict()
        names = sorted(inspect.signature(extractor.__init__).parameters)
        keys = {name: plain(values[name]) for name in names if name in values}
        yield {"model_type": extractor.__name__, "keys": keys}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the committed file instead of writing it")
    options = parser.parse_args()
    text = "".join(json.dumps(line, sort_keys=False, separators=(",", ":")) + "\n" for line in lines())
    if not options.check:
        TARGET.write_text(text)
        return
    committed = TARGET.read_text()
    version = json.loads(committed.splitlines()[0])["transformers"]
    if version != transformers.__version__:
        sys.exit(f"{TARGET.name} is of transformers {version}; installed: {transformers.__version__}")
    if committed != text:
        differing = [b for a, b in zip(committed.splitlines(), text.splitlines()) if a != b]
        sys.exit(f"{TARGET.name} differs; run this script without --check. First: {differing[:1]}")


if __name__ == "__main__":
    main()
