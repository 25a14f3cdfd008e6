"""Makes the models in this folder: small ones that scikit-learn, XGBoost and LightGBM train on random samples, as skl2onnx and
onnxmltools write them, with inputs and what ONNX Runtime gives, which is compared with the trainers' own answers first.

python3 make.py [NAME...]    # needs numpy, onnx, onnxruntime, pandas, scikit-learn, skl2onnx, onnxmltools, xgboost, lightgbm

NAME.onnx is a model; NAME.pb is a GraphProto whose initializers are `0/in/INPUT` and `0/out/OUTPUT`. Maps are matrices with a
column for each key there, in the order of the file.
"""

import pathlib
import sys
import warnings

import lightgbm
import numpy as np
import onnx
import onnxmltools
import onnxruntime
import xgboost
from onnx import helper, numpy_helper
from onnxmltools.convert.common.data_types import FloatTensorType as MltoolsFloat
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn import (cluster, compose, decomposition, discriminant_analysis, ensemble, impute, linear_model, mixture, naive_bayes,
                     neighbors, neural_network, pipeline, preprocessing, svm, tree)

warnings.filterwarnings("ignore")
HERE = pathlib.Path(__file__).parent
random = np.random.default_rng(5)
SAMPLES, FEATURES = 120, 6
X = random.standard_normal((SAMPLES, FEATURES)).astype(np.float32)
SCORE = X[:, 0] * 1.3 - X[:, 1] + X[:, 2] * X[:, 3] + 0.3 * random.standard_normal(SAMPLES)
TWO = (SCORE > 0).astype(np.int64)
THREE = np.digitize(SCORE, [-0.8, 0.7]).astype(np.int64)
FOUR_TEXTS = np.array(["ash", "birch", "cedar", "oak"])[np.digitize(SCORE, [-1.2, 0.0, 1.1])]
TARGETS = np.stack([SCORE, SCORE * 0.5 + X[:, 4]], 1).astype(np.float32)
HOLES = np.where(random.random(X.shape) < 0.15, np.nan, X).astype(np.float32)
COUNTS = random.integers(0, 4, (SAMPLES, 3))
COLOURS = np.array(["red", "green", "blue"])[random.integers(0, 3, (SAMPLES, 2))]
TEST = 16
only = set(sys.argv[1:])
PLAIN = {"zipmap": False}


def same(name, ours, theirs):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.dtype.kind in "UO" or theirs.dtype.kind in "UO":
        assert (ours.astype(str) == theirs.astype(str)).all(), name
    else:
        assert np.allclose(ours.reshape(theirs.shape), theirs, rtol=2e-3, atol=2e-4), (name, ours, theirs)


def save(name, model, inputs, expected):
    """Runs a model, compares its first results with those of the trainer, and writes both."""
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    results = session.run(None, inputs)
    for i, own in enumerate(expected):
        found = results[i]
        if isinstance(found, list):
            found = np.array([[row[key] for key in row] for row in found], np.float32)
            results[i] = found
        same(f"{name} {i}", found, own)
    results = [np.array([[row[key] for key in row] for row in r], np.float32) if isinstance(r, list) else r for r in results]
    (HERE / f"{name}.onnx").write_bytes(data)
    tensors = [(f"0/in/{key}", value) for key, value in inputs.items()]
    tensors += [(f"0/out/{o.name}", value) for o, value in zip(session.get_outputs(), results)]
    graph = onnx.GraphProto()
    for key, value in tensors:
        value = np.asarray(value)
        if value.dtype.kind in "UO":
            texts = [str(t).encode() for t in value.ravel()]
            graph.initializer.append(helper.make_tensor(key, onnx.TensorProto.STRING, value.shape, texts))
        else:
            graph.initializer.append(numpy_helper.from_array(value, key))
    (HERE / f"{name}.pb").write_bytes(graph.SerializeToString())
    print(name, len(data), sorted({f"{n.domain}:{n.op_type}" for n in model.graph.node}))


def wanted(name):
    return not only or name in only


def sk(name, model, y=None, x=X, initial=None, options=PLAIN, **more):
    """A model of scikit-learn."""
    if not wanted(name):
        return
    model.fit(x, y)
    sample = x[:TEST]
    last = model[-1] if isinstance(model, pipeline.Pipeline) else model
    options = {id(last): dict(options)} if options and hasattr(last, "predict_proba") and hasattr(last, "classes_") else None
    converted = to_onnx(model, sample if initial is None else None, initial_types=initial, options=options, **more)
    names = [i.name for i in converted.graph.input]
    inputs = {names[0]: sample} if len(names) == 1 else {n: sample[:, [i]] for i, n in enumerate(names)}
    expected = []
    if hasattr(model, "predict"):
        expected.append(model.predict(sample))
        if hasattr(model, "predict_proba"):
            expected.append(model.predict_proba(sample))
    elif hasattr(model, "transform"):
        made = model.transform(sample)
        expected.append(made.toarray() if hasattr(made, "toarray") else made)
    save(name, converted, inputs, expected)


few = dict(n_estimators=6, random_state=0)
sk("logistic_two", linear_model.LogisticRegression(), TWO)
sk("logistic_texts", linear_model.LogisticRegression(), FOUR_TEXTS)
sk("logistic_maps", linear_model.LogisticRegression(), FOUR_TEXTS, options=None)
sk("logistic_maps_of_numbers", linear_model.LogisticRegression(), THREE, options=None)
sk("linear_svc", svm.LinearSVC(), THREE)
sk("linear_svc_two", svm.LinearSVC(), TWO)
sk("sgd", linear_model.SGDClassifier(loss="log_loss", random_state=0), THREE)
sk("perceptron", linear_model.Perceptron(), THREE)
sk("ridge", linear_model.Ridge(), TARGETS)
sk("linear_regression", linear_model.LinearRegression(), SCORE.astype(np.float32))
sk("decision_tree", tree.DecisionTreeClassifier(max_depth=5, random_state=0), TWO)
sk("decision_tree_texts", tree.DecisionTreeClassifier(random_state=0), FOUR_TEXTS)
sk("tree_regressor", tree.DecisionTreeRegressor(max_depth=5, random_state=0), TARGETS)
sk("forest_two", ensemble.RandomForestClassifier(max_depth=5, **few), TWO)
sk("forest_texts", ensemble.RandomForestClassifier(max_depth=5, **few), FOUR_TEXTS, options=None)
sk("extra_trees", ensemble.ExtraTreesRegressor(max_depth=5, **few), SCORE)
sk("boosting_two", ensemble.GradientBoostingClassifier(**few), TWO)
sk("boosting_three", ensemble.GradientBoostingClassifier(**few), THREE)
sk("boosting_regressor", ensemble.GradientBoostingRegressor(**few), SCORE)
sk("ada_boost", ensemble.AdaBoostClassifier(**few), THREE)
sk("bagging", ensemble.BaggingClassifier(**few), THREE)
sk("isolation_forest", ensemble.IsolationForest(**few), target_opset={"": 17, "ai.onnx.ml": 3})
vote = [("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier(max_depth=4, random_state=0))]
sk("voting", ensemble.VotingClassifier(vote, voting="soft", flatten_transform=False), THREE)
sk("stacking", ensemble.StackingClassifier(vote), THREE)
sk("neighbours", neighbors.KNeighborsClassifier(3), THREE)
sk("neighbours_regressor", neighbors.KNeighborsRegressor(3), SCORE)
sk("gaussian_nb", naive_bayes.GaussianNB(), FOUR_TEXTS)
sk("bernoulli_nb", naive_bayes.BernoulliNB(), TWO)
sk("mlp", neural_network.MLPClassifier((8,), max_iter=60, random_state=0), FOUR_TEXTS)
sk("mlp_regressor", neural_network.MLPRegressor(hidden_layer_sizes=(8,), max_iter=60, random_state=0), TARGETS)
sk("lda", discriminant_analysis.LinearDiscriminantAnalysis(), THREE)
sk("qda", discriminant_analysis.QuadraticDiscriminantAnalysis(), TWO)
sk("k_means", cluster.KMeans(4, random_state=0))
sk("mixture", mixture.GaussianMixture(3, random_state=0))
sk("pca", decomposition.PCA(3))
sk("standard_scaler", preprocessing.StandardScaler())
sk("min_max_scaler", preprocessing.MinMaxScaler())
sk("robust_scaler", preprocessing.RobustScaler())
for norm in ("l1", "l2", "max"):
    sk(f"normalizer_{norm}", preprocessing.Normalizer(norm), x=np.abs(X))
sk("imputer", impute.SimpleImputer(), x=HOLES)
sk("polynomial", preprocessing.PolynomialFeatures(2))
sk("bins", preprocessing.KBinsDiscretizer(4, encode="onehot-dense", quantile_method="linear"))
sk("binarizer", preprocessing.Binarizer(threshold=0.2))
sk("one_hot_numbers", preprocessing.OneHotEncoder(handle_unknown="ignore"), x=COUNTS, initial=[("X", Int64TensorType([None, 3]))])
sk("one_hot_texts", preprocessing.OneHotEncoder(sparse_output=False), x=COLOURS, initial=[("X", StringTensorType([None, 2]))])
sk("ordinal_texts", preprocessing.OrdinalEncoder(), x=COLOURS, initial=[("X", StringTensorType([None, 2]))])
sk("svc", svm.SVC(), THREE)
sk("svc_two", svm.SVC(), TWO)
for name, y in (("two", TWO), ("three", THREE), ("texts", FOUR_TEXTS)):
    sk(f"svc_probabilities_{name}", svm.SVC(probability=True, random_state=0), y)
sk("nu_svc_probabilities", svm.NuSVC(probability=True, random_state=0, kernel="poly"), THREE)
sk("svr", svm.SVR(), SCORE)
sk("one_class_svm", svm.OneClassSVM())


def columns(name):
    """Numbers with holes and texts through transformers of their own into a forest, each column an input."""
    if not wanted(name):
        return
    import pandas

    frame = pandas.DataFrame({"size": HOLES[:, 0], "age": HOLES[:, 1], "colour": COLOURS[:, 0], "shade": COLOURS[:, 1]})
    numbers = pipeline.make_pipeline(impute.SimpleImputer(), preprocessing.StandardScaler())
    texts = preprocessing.OneHotEncoder(handle_unknown="ignore")
    both = compose.ColumnTransformer([("n", numbers, ["size", "age"]), ("t", texts, ["colour", "shade"])])
    model = pipeline.make_pipeline(both, ensemble.RandomForestClassifier(max_depth=4, **few)).fit(frame, FOUR_TEXTS)
    kinds = [("size", FloatTensorType), ("age", FloatTensorType), ("colour", StringTensorType), ("shade", StringTensorType)]
    converted = to_onnx(model, initial_types=[(n, k([None, 1])) for n, k in kinds])
    sample = frame[:TEST]
    inputs = {n: sample[[n]].to_numpy(np.float32 if k is FloatTensorType else object) for n, k in kinds}
    save(name, converted, inputs, [model.predict(sample), model.predict_proba(sample)])


columns("columns")


def boosted(name, model, y, convert, x=HOLES):
    """A model of XGBoost or LightGBM."""
    if not wanted(name):
        return
    model.fit(x, y)
    converted = convert(model, initial_types=[("X", MltoolsFloat([None, FEATURES]))], target_opset=15)
    sample = x[:TEST]
    expected = [model.predict(sample)]
    if hasattr(model, "predict_proba"):
        expected.append(model.predict_proba(sample))
    save(name, converted, {"X": sample}, expected)


xgb, lgb = onnxmltools.convert_xgboost, onnxmltools.convert_lightgbm
boosted("xgboost_two", xgboost.XGBClassifier(n_estimators=5, max_depth=3), TWO, xgb)
boosted("xgboost_three", xgboost.XGBClassifier(n_estimators=5, max_depth=3), THREE, xgb)
boosted("xgboost_regressor", xgboost.XGBRegressor(n_estimators=5, max_depth=3), SCORE, xgb)
quiet = dict(n_estimators=5, max_depth=3, min_child_samples=5, verbose=-1)
boosted("lightgbm_two", lightgbm.LGBMClassifier(**quiet), TWO, lgb)
boosted("lightgbm_three", lightgbm.LGBMClassifier(**quiet), THREE, lgb)
boosted("lightgbm_regressor", lightgbm.LGBMRegressor(**quiet), SCORE, lgb)


# Single operators, compared with ONNX Runtime only.

def operator(name, op, inputs, outputs=1, version=3, **attributes):
    """One node of `ai.onnx.ml`, against ONNX Runtime alone."""
    if not wanted(name):
        return
    node = helper.make_node(op, list(inputs), [f"y{i}" for i in range(outputs)], domain="ai.onnx.ml", **attributes)
    kind = lambda a: onnx.TensorProto.STRING if a.dtype.kind in "UO" else helper.np_dtype_to_tensor_dtype(a.dtype)
    given = [helper.make_tensor_value_info(n, kind(a), [None, *a.shape[1:]]) for n, a in inputs.items()]
    given_out = [helper.make_empty_tensor_value_info(n) for n in node.output]
    graph = helper.make_graph([node], name, given, given_out)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    save(name, helper.make_model(graph, opset_imports=opsets, ir_version=8), inputs, [])


def questions(modes, depth=3, trees=3, features=3):
    """Full trees of random questions, as lists; and their leaves."""
    lists = {k: [] for k in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids", "missing_value_tracks_true")}
    leaves = []
    for t in range(trees):
        for i in range(2 ** (depth + 1) - 1):
            leaf = i >= 2**depth - 1
            own = ("LEAF" if leaf else str(random.choice(modes)))
            row = (t, i, int(random.integers(features)), float(random.integers(-2, 3)), own, 0 if leaf else 2 * i + 1, 0 if leaf else 2 * i + 2, int(random.integers(2)))
            for key, value in zip(lists, row):
                lists[key].append(value)
            if leaf:
                leaves.append((t, i))
    return {f"nodes_{k}": v for k, v in lists.items()}, leaves


WHOLE = random.integers(-3, 4, (TEST, 3)).astype(np.float32)
WHOLE[3, 1] = WHOLE[7] = np.nan
ALL = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
for kinds in [*[[m] for m in ALL], ALL]:
    nodes, leaves = questions(kinds)
    target = dict(target_treeids=[t for t, _ in leaves], target_nodeids=[i for _, i in leaves], target_ids=[0] * len(leaves),
                  target_weights=[float(w) for w in random.standard_normal(len(leaves))])
    own = kinds[0].lower() if len(kinds) == 1 else "all"
    operator(f"trees_{own}", "TreeEnsembleRegressor", {"x": WHOLE}, n_targets=1, **nodes, **target)
for aggregate in ("AVERAGE", "MIN", "MAX"):
    operator(f"trees_{aggregate.lower()}", "TreeEnsembleRegressor", {"x": WHOLE}, n_targets=1, aggregate_function=aggregate, base_values=[0.5],
             **nodes, **target)
    some = dict(target, target_ids=[int(t) for t in random.integers(0, 3, len(leaves))])
    operator(f"trees_{aggregate.lower()}_of_three", "TreeEnsembleRegressor", {"x": WHOLE}, n_targets=3, aggregate_function=aggregate,
             **nodes, **some)
for transform in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
    classes = dict(class_treeids=target["target_treeids"], class_nodeids=target["target_nodeids"], post_transform=transform)
    weights = np.abs(random.standard_normal(len(leaves)))
    operator(f"classes_{transform.lower()}", "TreeEnsembleClassifier", {"x": WHOLE}, 2, classlabels_strings=["a", "b", "c"],
             class_ids=[i % 3 for i in range(len(leaves))], class_weights=[float(w) for w in weights], base_values=[0.1, 0.2, 0.3], **nodes, **classes)
    operator(f"two_probabilities_{transform.lower()}", "TreeEnsembleClassifier", {"x": WHOLE}, 2, classlabels_int64s=[4, 7],
             class_ids=[0] * len(leaves), class_weights=[float(w) / 4 for w in weights], **nodes, **classes)
    operator(f"two_sums_{transform.lower()}", "TreeEnsembleClassifier", {"x": WHOLE}, 2, classlabels_int64s=[4, 7], base_values=[0.3],
             class_ids=[0] * len(leaves), class_weights=target["target_weights"], **nodes, **classes)
    operator(f"linear_{transform.lower()}", "LinearClassifier", {"x": X[:TEST, :3]}, 2, classlabels_strings=["no", "yes"], intercepts=[0.2],
             coefficients=[1.0, -2.0, 0.5], post_transform=transform)
    operator(f"linear_three_{transform.lower()}", "LinearClassifier", {"x": X[:TEST, :2]}, 2, classlabels_ints=[3, 5, 8],
             intercepts=[0.2, 0.0, -0.1], coefficients=[1.0, -2.0, 0.5, 0.7, -0.3, 0.9], post_transform=transform)
operator("regressor_probit", "LinearRegressor", {"x": np.float32([[0.1], [0.5], [0.8], [0.99]])}, coefficients=[1.0], intercepts=[0.0],
         post_transform="PROBIT")

f32 = lambda name, values: helper.make_tensor(name, onnx.TensorProto.FLOAT, [len(values)], values)
modes = lambda values: helper.make_tensor("modes", onnx.TensorProto.UINT8, [len(values)], values)
# Leaves out logistic and softmax, whose numbers ONNX Runtime 1.2x interchanges.
for aggregate, transform in ((1, 0), (0, 0), (2, 0), (3, 0), (1, 3)):
    operator(f"ensemble_{aggregate}_{transform}", "TreeEnsemble", {"x": WHOLE}, version=5, aggregate_function=aggregate, post_transform=transform,
             n_targets=2, tree_roots=[0, 3], nodes_featureids=[0, 1, 2, 1, 0], nodes_modes=modes([0, 4, 3, 2, 1]),
             nodes_splits=f32("splits", [0.5, 1.0, -1.0, 0.0, 2.0]), nodes_truenodeids=[1, 0, 2, 4, 4], nodes_trueleafs=[0, 1, 1, 0, 1],
             nodes_falsenodeids=[2, 1, 3, 0, 2], nodes_falseleafs=[0, 1, 1, 1, 1], nodes_missing_value_tracks_true=[0, 1, 0, 1, 0],
             leaf_targetids=[0, 1, 0, 1, 1], leaf_weights=f32("weights", [0.5, -1.0, 2.0, 0.25, 3.0]))
operator("ensemble_members", "TreeEnsemble", {"x": WHOLE}, version=5, n_targets=1, tree_roots=[0], nodes_featureids=[0, 1, 1],
         nodes_modes=modes([6, 6, 0]), nodes_splits=f32("splits", [0.0, 0.0, 1.0]), nodes_truenodeids=[1, 0, 1], nodes_trueleafs=[0, 1, 1],
         nodes_falsenodeids=[2, 2, 3], nodes_falseleafs=[0, 1, 1], leaf_targetids=[0] * 4, leaf_weights=f32("weights", [1.0, 2.0, 3.0, 4.0]),
         membership_values=f32("members", [-2.0, 0.0, 3.0, np.nan, 1.0, 2.0, np.nan]))

texts = np.array([["a", "b"], ["zz", "c"]], dtype=object)
numbers = np.array([[3, 1], [9, 2]], np.int64)
operator("label_texts_to_numbers", "LabelEncoder", {"x": texts}, keys_strings=["a", "b", "c"], values_int64s=[5, 6, 7], default_int64=42)
operator("label_texts_to_texts", "LabelEncoder", {"x": texts}, keys_strings=["a", "b", "c"], values_strings=["one", "two", "three"])
operator("label_numbers_to_texts", "LabelEncoder", {"x": numbers}, keys_int64s=[1, 2, 3], values_strings=["x", "y", "z"], default_string="none")
operator("label_numbers_to_floats", "LabelEncoder", {"x": numbers}, keys_int64s=[1, 2, 3], values_floats=[0.5, 1.5, 2.5])
for version in (3, 4):
    operator(f"label_floats_{version}", "LabelEncoder", {"x": np.float32([[1, np.nan], [2, 5]])}, version=version, keys_floats=[1.0, np.nan, 2.0], values_int64s=[1, 2, 3])
operator("label_first", "LabelEncoder", {"x": texts}, version=1, classes_strings=["a", "b", "c"], default_int64=-5)
operator("category_of_texts", "CategoryMapper", {"x": texts}, cats_strings=["a", "b", "c"], cats_int64s=[10, 20, 30])
operator("category_of_numbers", "CategoryMapper", {"x": numbers}, cats_strings=["a", "b", "c"], cats_int64s=[1, 2, 3], default_string="?")
operator("hot_numbers", "OneHotEncoder", {"x": numbers}, cats_int64s=[1, 2, 3])
operator("hot_floats", "OneHotEncoder", {"x": numbers.astype(np.float32)}, cats_int64s=[1, 2, 3])
operator("imputer_numbers", "Imputer", {"x": numbers}, imputed_value_int64s=[7, 8], replaced_value_int64=9)
operator("imputer_of_zero", "Imputer", {"x": np.float32([[0, 1], [2, 0]])}, imputed_value_floats=[7.0], replaced_value_float=0.0)
operator("vectorizer", "FeatureVectorizer", {"a": X[:4, :2], "b": X[:4, 2:5]}, inputdimensions=[2, 3])
operator("scaler_all", "Scaler", {"x": numbers}, offset=[1.0], scale=[0.5])
kernels = dict(LINEAR=[0.0, 0.0, 0.0], POLY=[0.5, 1.0, 3.0], RBF=[0.7, 0.0, 0.0], SIGMOID=[0.4, 0.3, 0.0])
for kind, params in kernels.items():
    operator(f"svm_{kind.lower()}", "SVMClassifier", {"x": X[:TEST, :2]}, 2, kernel_type=kind, kernel_params=params, classlabels_strings=["a", "b", "c"],
             vectors_per_class=[2, 1, 2], support_vectors=[float(v) for v in X[20:25, :2].ravel()], rho=[0.1, -0.2, 0.3],
             coefficients=[float(c) for c in random.standard_normal(10)])
operator("svm_one_class", "SVMRegressor", {"x": X[:TEST, :2]}, kernel_type="RBF", kernel_params=kernels["RBF"], n_supports=3, one_class=1,
         support_vectors=[float(v) for v in X[20:23, :2].ravel()], rho=[-0.4], coefficients=[0.4, 0.3, 0.2])
operator("svm_linear_regressor", "SVMRegressor", {"x": X[:TEST, :2]}, n_supports=0, kernel_params=[0.0, 0.0, 0.0], rho=[0.5], coefficients=[0.4, -0.3])
