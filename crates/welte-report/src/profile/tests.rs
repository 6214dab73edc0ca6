use super::*;
use crate::lanes::tests::made;
use welte_table::Op;

fn op(op: Op, ns: u64, flops: u64) -> Profile {
    Profile {
        op,
        calls: 3,
        ns,
        bytes: 40_000_000,
        flops,
    }
}

fn part(name: &'static str) -> Part {
    let idle = Profile {
        calls: 0,
        ..op(Op::Norm, 0, 0)
    };
    let ops = vec![
        op(Op::Embed, 1_000_000, 0),
        idle,
        op(Op::Matmul, 2_000_000, 80_000_000),
    ];
    Part {
        name,
        tokens: 4,
        how: "commands <timed>".to_string(),
        timed: Timed::ops(ops),
        step: Timeline::default(),
        lane: "commands",
    }
}

fn kernel() -> Part {
    Part {
        how: "persistent".to_string(),
        timed: Timed::Whole {
            ns: 8_000_000,
            bytes: 160_000_000,
        },
        step: made(132, 36),
        lane: "block",
        ..part("generation")
    }
}

fn report(parts: Vec<Part>, in_cache: bool) -> Report {
    Report {
        model: "<model>".to_string(),
        device: "<cpu>".to_string(),
        floor: Floor {
            speed: 40e9,
            in_cache,
        },
        parts,
    }
}

#[test]
fn ops_that_ran_come_longest_first() {
    let text = text(&report(vec![part("prompt")], false));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "memory floor: 40.0 GB/s, measured on <cpu>");
    assert_eq!(
        lines[2],
        "prompt: 4 tokens, 0.750 ms per token, 26.7 GB/s, 67 % of the floor"
    );
    assert_eq!(
        lines[4],
        "matmul                        3       2.000       40.0     20.0     50 %      40.0  66.7 % █████████████████"
    );
    assert!(lines[5].starts_with("embed ") && lines[6].is_empty());
}

#[test]
fn a_model_in_cache_has_no_share_of_the_floor() {
    let small = report(vec![part("prompt")], true);
    assert!(text(&small).contains("26.7 GB/s, in cache\n"));
    let page = html(&small);
    assert!(page.contains("<td class=\"n\">in cache") && !page.contains("% of the floor"));
    assert_eq!(json(&small)["in_cache"], true);
}

#[test]
fn every_op_is_in_table_and_roofline() {
    let page = html(&report(vec![part("prompt"), part("generation")], false));
    assert_eq!(page.matches("<circle").count(), 2);
    assert_eq!(page.matches("class=\"name\"").count(), 2);
    assert_eq!(page.matches("<td>matmul").count(), 2);
    assert_eq!(page.matches("<td>embed").count(), 2);
    assert!(page.contains("&lt;model&gt;") && page.contains("&lt;cpu&gt;"));
    assert!(page.contains("&lt;timed&gt;") && !page.contains("<path"));
    assert!(page.contains("<td class=\"n\">50 %"));
}

#[test]
fn a_kernel_that_runs_all_commands_has_its_own_table_and_picture() {
    let kernel = kernel();
    assert_eq!(kernel.ms_per_token(), 2.0);
    assert_eq!(kernel.gb_s(), 20.0);
    assert_eq!(
        kernel.step_title(),
        "token at position 9, timed by 132 blocks, 54.0 us"
    );
    let report = report(vec![part("prompt"), kernel], false);
    let page = html(&report);
    assert_eq!(page.matches("<td>norm_matmul qkv").count(), 1);
    // The roofline, the token and one of its layers.
    assert_eq!(page.matches("<svg").count(), 3);
    assert!(page.contains("Layer 18 of this step") && page.contains("block 0"));
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert!(page.len() < 2_000_000, "{}", page.len());
    let value = json(&report);
    assert_eq!(value["parts"][0]["commands"][0]["command"], "matmul");
    assert_eq!(value["parts"][1]["token"]["blocks"], 132);
    assert_eq!(value["parts"][1]["token"]["commands"][0]["calls"], 36);
    assert!(text(&report).contains("persistent: token at position 9"));
}
