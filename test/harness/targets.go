package harness

// WorkloadTargets is the part of a configuration that makes each program of
// bin/test a target named after it, whatever service it would be taken for on this
// machine, and leaves all others out.
const WorkloadTargets = `
target_configs:
  - job_name: workloads
    process_sd_configs: [{}]
    relabel_configs:
      - source_labels: [__meta_process_exe]
        regex: .*/bin/test/([^/]+)
        action: keep
      - source_labels: [__meta_process_exe]
        regex: .*/spanflame # the agent itself is built there, too
        action: drop
      - source_labels: [__meta_process_exe]
        regex: .*/bin/test/([^/]+)
        target_label: service_name
`
