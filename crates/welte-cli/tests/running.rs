//! `welte run NAME`, `welte launch` and `welte service`: what they do with a running server, and without one.
#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo.gguf");

struct Server(Child, String);

impl Server {
    fn start() -> Server {
        Server::start_at("127.0.0.1")
    }

    fn start_at(host: &str) -> Server {
        let mut process = Command::new(env!("CARGO_BIN_EXE_welte"))
            .args([
                "serve", "-m", DEMO, "--alias", "fox", "--host", host, "--port", "0",
            ])
            .args(["--device", "cpu", "-t", "2", "-c", "512"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = said.find_map(|line| Some(line.ok()?.split_once("http://")?.1.to_string()));
        std::thread::spawn(move || said.map_while(Result::ok).for_each(drop));
        Server(process, address.expect("it listens"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the command with these variables and nothing on standard input.
fn welte(args: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_welte"))
        .args(args)
        .env_remove("WELTE_HOST")
        .env_remove("OLLAMA_HOST")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_name_of_a_running_server_is_answered_there() {
    let server = Server::start();
    let at = [("WELTE_HOST", server.1.as_str())];
    let args = [
        "run",
        "fox",
        "Tell me a story about a fox.",
        "--temp",
        "0",
        "-n",
        "12",
    ];
    let there = welte(&args, &at);
    assert!(there.status.success(), "{}", text(&there.stderr));
    assert!(text(&there.stderr).contains(&format!("fox at http://{}", server.1)));
    let here = [
        "run",
        DEMO,
        "Tell me a story about a fox.",
        "--temp",
        "0",
        "-n",
        "12",
        "--device",
        "cpu",
    ];
    let here = welte(&here, &at);
    assert_eq!(text(&there.stdout).trim(), text(&here.stdout).trim());
    // The server has no such model, so the word is what it was before.
    let other = welte(&["run", "wolf", "A story"], &at);
    assert!(text(&other.stderr).contains("wolf: no such file"));
    let refused = welte(&["run", "fox", "A story", "--logprobs", "1"], &at);
    assert!(text(&refused.stderr).contains("--logprobs"));
    // What is a setting of the server is refused by name, and what the server knows is sent.
    for flags in [["-c", "128"], ["--device", "cpu"], ["-md", DEMO]] {
        let refused = welte(&[&["run", "fox", "A story"][..], &flags].concat(), &at);
        let said = text(&refused.stderr);
        assert!(
            !refused.status.success() && said.contains(flags[0]),
            "{said}"
        );
    }
    let long = ["run", "fox", "A story", "-n", "300", "--temp", "0"];
    let ends = welte(&long, &at);
    let goes_on = welte(&[&long[..], &["--ignore-eos"]].concat(), &at);
    assert!(goes_on.status.success(), "{}", text(&goes_on.stderr));
    assert!(goes_on.stdout.len() > ends.stdout.len());
    assert!(
        goes_on
            .stdout
            .starts_with(text(&ends.stdout).trim().as_bytes())
    );
    let listed = welte(
        &["ps"],
        &[("OLLAMA_HOST", &format!("http://{}/", server.1))],
    );
    assert!(
        text(&listed.stdout).contains("fox"),
        "{}",
        text(&listed.stderr)
    );
}

#[test]
fn a_server_on_ipv6_answers_its_own_commands() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("there is no IPv6 here");
        return;
    }
    let server = Server::start_at("::1");
    let listed = welte(&["ps"], &[("WELTE_HOST", &server.1)]);
    assert!(
        text(&listed.stdout).contains("fox"),
        "{}",
        text(&listed.stderr)
    );
    // A name that the server does not know is refused, and nobody waits for another answer.
    let port = server.1.rsplit_once(':').unwrap().1;
    let listed = welte(&["ps", "--host", "::1", "--port", port], &[]);
    assert!(
        text(&listed.stdout).contains("fox"),
        "{}",
        text(&listed.stderr)
    );
}

/// A program that says what it was given.
fn pretend(folder: &Path, name: &str) {
    let path = folder.join(name);
    let script = "#!/bin/sh\necho \"$0 $*\"\nenv | grep -E '^(ANTHROPIC|OPENAI|CODEX)'\ncat \"$CODEX_HOME/config.toml\" 2>/dev/null\nexit 7\n";
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn a_program_is_launched_with_a_running_server_or_one_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["claude", "codex", "aider"] {
        pretend(folder.path(), name);
    }
    let path = format!(
        "{}:{}",
        folder.path().display(),
        std::env::var("PATH").unwrap()
    );
    let server = Server::start();
    let at = [("WELTE_HOST", server.1.as_str()), ("PATH", &path)];
    let codex = welte(&["launch", "codex", "--", "exec", "a task"], &at);
    // The program's exit code is ours.
    assert_eq!(codex.status.code(), Some(7), "{}", text(&codex.stderr));
    let said = text(&codex.stdout);
    assert!(said.contains("codex exec a task"), "{said}");
    assert!(
        said.contains("model = \"fox\"") && said.contains(&format!("http://{}/v1", server.1)),
        "{said}"
    );
    // Keys and addresses of other services do not reach the program.
    let others = [
        ("WELTE_HOST", server.1.as_str()),
        ("PATH", &path),
        ("ANTHROPIC_API_KEY", "a-real-key"),
        ("OPENAI_BASE_URL", "https://example.org"),
    ];
    for program in ["claude", "codex"] {
        let said = text(&welte(&["launch", program], &others).stdout);
        assert!(
            !said.contains("a-real-key") && !said.contains("example.org"),
            "{said}"
        );
    }
    let wrong = welte(&["launch", "claude", "-m", "wolf"], &at);
    assert!(text(&wrong.stderr).contains("the running server has fox"));
    let printed = welte(&["launch", "claude", "--print"], &at);
    let printed = text(&printed.stdout);
    assert!(
        printed.contains(&format!("export ANTHROPIC_BASE_URL='http://{}'", server.1)),
        "{printed}"
    );
    // Not at the server's own port.
    let printed = text(&welte(&["launch", "open-webui", "--print"], &at).stdout);
    assert!(
        printed.contains("open-webui 'serve' '--port' '3000'"),
        "{printed}"
    );
    let missing = welte(&["launch", "goose"], &at);
    assert!(text(&missing.stderr).contains("goose: cannot be started"));

    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let own = ["launch", "aider", "-m", DEMO, "-c", "512", "--port", &port];
    let own = welte(&own, &[("PATH", &path)]);
    assert_eq!(own.status.code(), Some(7), "{}", text(&own.stderr));
    assert!(
        text(&own.stdout).contains("--model openai/demo"),
        "{}",
        text(&own.stdout)
    );
    assert!(text(&own.stdout).contains(&format!("OPENAI_API_BASE=http://127.0.0.1:{port}/v1")));
    // It has ended with the program.
    let gone = welte(&["ps", "--port", &port], &[]);
    assert!(text(&gone.stderr).contains("no server answers"));
    let broken = ["launch", "aider", "-m", "/nowhere.gguf", "--port", &port];
    let broken = welte(&broken, &[("PATH", &path)]);
    assert!(
        text(&broken.stderr).contains("/nowhere.gguf"),
        "{}",
        text(&broken.stderr)
    );
}

#[test]
fn a_server_ends_with_the_launcher_even_if_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("aider");
    std::fs::write(&path, "#!/bin/sh\necho started\nexec sleep 60\n").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!(
        "{}:{}",
        folder.path().display(),
        std::env::var("PATH").unwrap()
    );
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let mut launcher = Command::new(env!("CARGO_BIN_EXE_welte"))
        .args(["launch", "aider", "-m", DEMO, "-c", "512", "--port", &port])
        .env("PATH", &path)
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        // The program outlives the test, and must not hold a pipe of whoever runs it.
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(launcher.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    let there = || welte(&["ps", "--port", &port], &[]);
    assert!(there().status.success());
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    while there().status.success() {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_service_is_a_file_that_comes_and_goes() {
    let home = tempfile::tempdir().unwrap();
    let variables = [("XDG_CONFIG_HOME", home.path().to_str().unwrap())];
    let unit = home.path().join("systemd/user/welte.service");
    let none = welte(&["service", "status"], &variables);
    assert!(text(&none.stderr).contains("not installed"));
    let args = [
        "service",
        "install",
        "--no-start",
        "--",
        "-m",
        "a model.gguf",
    ];
    assert!(welte(&args, &variables).status.success());
    // It may have a key.
    let mode = std::fs::metadata(&unit).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let written = std::fs::read_to_string(&unit).unwrap();
    assert!(
        written.contains("\"serve\" \"-m\" \"a model.gguf\""),
        "{written}"
    );
    let removed = welte(&["service", "remove"], &variables);
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    assert!(!unit.exists());
    assert!(!welte(&["service", "remove"], &variables).status.success());
}
