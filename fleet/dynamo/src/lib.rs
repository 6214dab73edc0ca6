//! Welte as a worker of NVIDIA Dynamo (docs/fleet.md).

mod ask;
mod card;
mod events;
mod worker;

pub use worker::{Args, Worker};

use dynamo_backend_common::{BackendError, DynamoError, ErrorType};

/// Dynamo's error of this kind.
fn error(kind: BackendError, problem: impl std::fmt::Display) -> DynamoError {
    let kind = ErrorType::Backend(kind);
    DynamoError::builder()
        .error_type(kind)
        .message(problem.to_string())
        .build()
}
