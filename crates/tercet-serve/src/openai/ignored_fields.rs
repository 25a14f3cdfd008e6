//! Fields of OpenAI's API and of other servers that this server does not implement.
//!
//! Fields that cannot change a response are accepted with any value. The others are accepted with
//! the values that mean what the server does anyway.

/// Fields about billing, storage, routing and caches, and hints to models that the
/// served models do not take. The log of the request names them.
pub(super) const IGNORED: [&str; 41] = [
    // OpenAI.
    "metadata",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning_effort",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
    // vLLM, SGLang and TGI.
    "early_stopping",
    "mm_processor_kwargs",
    "request_id",
    "rid",
    "session_id",
    "spaces_between_special_tokens",
    // llama.cpp.
    "cache_prompt",
    "id_slot",
    "n_discard",
    "n_keep",
    "return_progress",
    "slot_id",
    "timings_per_token",
    // Ollama and LM Studio.
    "draft_model",
    "keep_alive",
    "num_ctx",
    "ttl",
    // Routers and clients.
    "additional_drop_params",
    "caching",
    "drop_params",
    "extra_headers",
    "extra_query",
    "fallbacks",
    "provider",
    "route",
    "tags",
    "timeout",
    "trace",
    "trace_id",
    "transforms",
    "usage",
];

/// Fields that change a response, and the JSON values at which they do not.
pub(super) const NEUTRAL: [(&str, &str); 47] = [
    // OpenAI.
    ("audio", "[{}]"),
    ("best_of", "[1]"),
    ("extra_body", "[{}]"),
    ("function_call", r#"["none", "auto"]"#),
    ("functions", "[[]]"),
    ("modalities", r#"[["text"]]"#),
    ("response_format", r#"[{"type": "text"}]"#),
    ("web_search_options", "[]"),
    // vLLM, SGLang and TGI.
    ("add_generation_prompt", "[true]"),
    ("allowed_token_ids", "[[]]"),
    ("bad_words", "[[]]"),
    ("chat_template_kwargs", "[{}]"),
    ("continue_final_message", "[false]"),
    ("documents", "[[]]"),
    ("guided_choice", "[[]]"),
    ("guided_grammar", r#"[""]"#),
    ("guided_json", "[{}]"),
    ("guided_regex", r#"[""]"#),
    ("include_stop_str_in_output", "[false]"),
    ("length_penalty", "[1]"),
    ("logits_processors", "[[]]"),
    ("no_stop_trim", "[false]"),
    ("prompt_logprobs", "[0, false]"),
    ("return_tokens_as_token_ids", "[false]"),
    ("skip_special_tokens", "[true]"),
    ("structured_outputs", "[{}]"),
    ("top_a", "[0]"),
    ("truncate_prompt_tokens", "[-1]"),
    ("use_beam_search", "[false]"),
    ("watermark", "[false]"),
    // llama.cpp and text-generation-webui.
    ("min_keep", "[0, 1]"),
    ("eta_cutoff", "[0]"),
    ("epsilon_cutoff", "[0]"),
    ("guidance_scale", "[1]"),
    ("json_schema", "[{}]"),
    ("lora", "[[]]"),
    ("n_probs", "[0]"),
    ("negative_prompt", r#"[""]"#),
    ("no_repeat_ngram_size", "[0]"),
    ("options", "[{}]"),
    ("penalize_nl", "[false]"),
    ("post_sampling_probs", "[false]"),
    (
        "reasoning_format",
        r#"["auto", "deepseek", "deepseek-legacy"]"#,
    ),
    ("return_tokens", "[false]"),
    ("smoothing_factor", "[0]"),
    ("t_max_predict_ms", "[0, -1]"),
    ("tfs_z", "[1]"),
];
