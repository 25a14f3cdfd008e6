//! Rerankers.

use serde_json::{Value, json};
use tercet_serve::ServeOptions;

use crate::server::{Running, data, start_folders};

const RERANKER: &str = "reranker-a";
const EMBEDDER: &str = "sentence-a";

fn server() -> Running {
    let folders = ["encoders/reranker-a", "encoders/sentence-a"];
    start_folders(&folders, ServeOptions::default())
}

#[test]
fn documents_are_ranked_by_their_scores() {
    let server = server();
    let file = std::fs::read(data("encoders/reranker-a/sentences.json")).unwrap();
    let reference: Value = serde_json::from_slice(&file).unwrap();
    let (texts, case) = (&reference["texts"], &reference["cases"][0]);
    let want = case["want"].as_array().unwrap();
    let ask = json!({"model": RERANKER, "query": case["query"], "documents": texts, "return_documents": true});
    let answer = server.post("/v1/rerank", &ask);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json = answer.json();
    let results = json["results"].as_array().unwrap();
    assert_eq!(results.len(), want.len());
    let mut last = f64::INFINITY;
    for result in results {
        let at = result["index"].as_u64().unwrap() as usize;
        let score = result["relevance_score"].as_f64().unwrap();
        assert!(
            (score - want[at].as_f64().unwrap()).abs() < 1e-4,
            "{at}: {score}"
        );
        assert!(score <= last);
        last = score;
        assert_eq!(result["document"]["text"], texts[at]);
    }
    assert!(json["usage"]["total_tokens"].as_u64().unwrap() > want.len() as u64);

    let some = json!({
        "model": RERANKER, "query": case["query"], "top_n": 1,
        "documents": [{"text": texts[0]}, texts[1]],
    });
    let few = server.post("/v1/rerank", &some).json();
    let few = few["results"].as_array().unwrap();
    let best = results.iter().find(|r| r["index"].as_u64() < Some(2));
    let best = best.unwrap();
    assert_eq!(few.len(), 1);
    assert_eq!(few[0]["index"], best["index"]);
    assert!(few[0]["document"].is_null());
}

#[test]
fn what_is_no_ranking_is_refused() {
    let server = server();
    let ask = json!({"model": RERANKER, "query": "q", "documents": ["a"]});
    let cases = [
        (json!({"model": EMBEDDER}), 400, "sentence encoder"),
        (json!({"model": "none"}), 404, "available: reranker-a"),
        (json!({"query": null}), 400, "query"),
        (json!({"documents": []}), 400, "documents"),
        (json!({"documents": "a"}), 400, "documents"),
        (json!({"documents": [1]}), 400, "documents"),
        (json!({"documents": [{"title": "x"}]}), 400, "text"),
        (
            json!({"documents": ["word ".repeat(5000)]}),
            400,
            "documents",
        ),
        (json!({"top_n": 0}), 400, "top_n"),
        (json!({"top_n": -1}), 400, "top_n"),
        (json!({"rank_fields": ["x"]}), 400, "rank_fields"),
    ];
    // A document may have more fields; only its text is scored.
    let documents = json!([{"text": "x", "title": "y"}]);
    let titled = json!({"model": RERANKER, "query": "q", "documents": documents});
    assert_eq!(server.post("/v1/rerank", &titled).status, 200);
    for (more, status, named) in cases {
        let mut request = ask.clone();
        let fields = more.as_object().unwrap().clone();
        request.as_object_mut().unwrap().extend(fields);
        let answer = server.post("/v1/rerank", &request);
        assert_eq!(answer.status, status, "{more:.80}: {}", answer.text());
        let error = answer.error();
        assert!(error.contains(named), "{more:.80}: {error}");
    }
    let long = json!({"model": RERANKER, "query": "q", "documents": ["word ".repeat(5000)], "truncate": true});
    assert_eq!(server.post("/v1/rerank", &long).status, 200);
    let embed = json!({"model": RERANKER, "input": "a"});
    let answer = server.post("/v1/embeddings", &embed);
    assert_eq!(answer.status, 404);
    assert!(answer.error().contains("available: sentence-a"));
}

#[test]
fn pairs_are_scored_in_order() {
    let server = server();
    let texts = [
        "a river",
        "the house under a tree",
        "slow and fast questions",
    ];
    let score = |body: Value| {
        let mut body = body;
        body["model"] = json!(RERANKER);
        let answer = server.post("/score", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let data = answer.json()["data"].as_array().unwrap().clone();
        data.iter()
            .map(|of| of["score"].as_f64().unwrap())
            .collect::<Vec<f64>>()
    };
    let ranked = json!({"model": RERANKER, "query": texts[0], "documents": texts});
    let ranked = server.post("/rerank", &ranked).json();
    let mut expected = vec![0.0; 3];
    for result in ranked["results"].as_array().unwrap() {
        let at = usize::try_from(result["index"].as_u64().unwrap()).unwrap();
        expected[at] = result["relevance_score"].as_f64().unwrap();
    }
    assert_eq!(
        score(json!({"text_1": texts[0], "text_2": texts})),
        expected
    );
    assert_eq!(
        score(json!({"queries": [texts[0]], "documents": texts})),
        expected
    );
    let pairs = score(json!({"text_1": [texts[0], texts[0]], "text_2": [texts[2], texts[1]]}));
    assert_eq!(pairs, [expected[2], expected[1]]);
    for (body, part) in [
        (json!({"text_1": "a"}), "text_2"),
        (
            json!({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}),
            "has 2 texts",
        ),
        (json!({"text_1": 1, "text_2": "a"}), "text_1"),
        (
            json!({"model": EMBEDDER, "text_1": "a", "text_2": "a"}),
            "sentence encoder",
        ),
    ] {
        let mut body = body;
        body["model"] = body
            .get("model")
            .cloned()
            .unwrap_or_else(|| json!(RERANKER));
        let answer = server.post("/v1/score", &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        assert!(answer.error().contains(part), "{}", answer.error());
    }
}
