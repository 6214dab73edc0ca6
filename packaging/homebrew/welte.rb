class Welte < Formula
  desc "LLM inference engine: command-line, server and library"
  homepage "@home@"
  version "@version@"
  license any_of: ["MIT", "Apache-2.0"]

  on_linux do
    on_intel do
      url "@home@/releases/@version@/welte-@version@-linux-x86_64.tar.gz"
      sha256 "@sha256:linux-x86_64.tar.gz@"
    end
    on_arm do
      url "@home@/releases/@version@/welte-@version@-linux-aarch64.tar.gz"
      sha256 "@sha256:linux-aarch64.tar.gz@"
    end
  end
  on_macos do
    url "@home@/releases/@version@/welte-@version@-source.tar.gz"
    sha256 "@sha256:source.tar.gz@"
    depends_on "rust" => :build
  end

  def install
    if OS.mac?
      system "cargo", "install", *std_cargo_args(path: "crates/welte-cli")
      (share/"welte").install "models/demo.gguf"
      generate_completions_from_executable(bin/"welte", "completions")
    else
      prefix.install Dir["*"]
    end
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/welte --version")
    assert_match "fox", shell_output("#{bin}/welte run -n 40 'Tell me a story about a fox.'")
  end
end
