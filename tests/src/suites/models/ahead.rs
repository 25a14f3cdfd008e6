//! Tokens whose runs start before they are known.

use tercet::Device;

use super::{CheckResult, Coverage, demo, fail, prompts};

/// Texts that are run ahead are those that are not, greedy and drawn; where a text goes on otherwise than was chosen, what was run ahead is
/// forgotten, its random number, too.
pub(super) fn ahead(share: Coverage, device: &Device) -> CheckResult {
    let p = &prompts()?[1];
    for temperature in share.select(vec![1.0, 0.0], 1) {
        let make = || {
            demo("model.safetensors", device, |o| {
                o.context = p.ids.len() + 48;
                let sampling = o.sampling.get_or_insert(tercet_models::Sampling::GREEDY);
                (sampling.temperature, sampling.top_k, sampling.seed) = (temperature, 50, 3);
            })
        };
        let (mut plain, mut ahead) = (make()?, make()?);
        plain.generator.skip_logits();
        ahead.generator.skip_logits();
        ahead.generator.run_ahead();
        let (mut texts, mut has_logits) = ([Vec::new(), Vec::new()], Vec::new());
        for (text, demo) in texts.iter_mut().zip([&mut plain, &mut ahead]) {
            let generator = &mut demo.generator;
            let mut next = generator.forward(&p.ids)?.next;
            for at in 0..40 {
                let chosen = next.ok_or("the graph does not sample")?;
                text.push(chosen);
                if at == 3 {
                    has_logits.push(generator.logits().is_ok());
                }
                next = match at {
                    // Another token than the one chosen, some at once, a part taken back, other numbers, the token again.
                    7 => generator.forward(&[chosen + 1])?.next,
                    13 => generator.forward(&[chosen, 5, 6])?.next,
                    19 => {
                        let position = generator.position();
                        generator.truncate(position - 3);
                        generator.forward(&[chosen])?.next
                    }
                    25 => {
                        generator.set_seed(11);
                        generator.forward(&[chosen])?.next
                    }
                    31 => {
                        generator.reset();
                        generator.forward(&[chosen])?.next
                    }
                    _ => generator.forward(&[chosen])?.next,
                };
            }
            // Up to the end of the cache, and no further.
            while generator.position() < generator.context() {
                let chosen = next.ok_or("the graph does not sample")?;
                text.push(chosen);
                next = generator.forward(&[chosen])?.next;
            }
            if generator.forward(&[1]).is_ok() {
                return fail("fed beyond the context".to_string());
            }
        }
        // The run ahead has taken their place, where there is one.
        let is_host = matches!(device.name(), "cpu" | "reference");
        if has_logits != [true, is_host] {
            return fail(format!("logits: {has_logits:?}"));
        }
        let [plain, ahead] = texts;
        if plain != ahead {
            return fail(format!(
                "temperature {temperature}: {plain:?}, ahead {ahead:?}"
            ));
        }
    }
    Ok(())
}
