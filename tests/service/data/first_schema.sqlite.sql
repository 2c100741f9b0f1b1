BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE calibrations (
	id VARCHAR(64) NOT NULL, 
	created_at DATETIME NOT NULL, 
	cluster_id VARCHAR(64) NOT NULL, 
	job_id VARCHAR(64), 
	backend VARCHAR(16) NOT NULL, 
	complete BOOLEAN NOT NULL, 
	num_collectives INTEGER NOT NULL, 
	num_ops INTEGER NOT NULL, 
	document JSON NOT NULL, 
	CONSTRAINT pk_calibrations PRIMARY KEY (id), 
	CONSTRAINT fk_calibrations_cluster_id FOREIGN KEY(cluster_id) REFERENCES clusters (id), 
	CONSTRAINT fk_calibrations_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
INSERT INTO "calibrations" VALUES('cal-ab1fc79605bc2172','2026-10-01 12:00:02.000000','clu-036ed24929f7ab07',NULL,'gloo',1,5,0,'{"backend":"gloo","cluster":{"device":{"efficiency":0.5,"kind":"cpu","memory_bandwidth_bytes_per_s":11000000000.0,"memory_bytes":4294967296,"name":"cpu-rank","op_overhead_s":1e-05,"peak_flops":{"bfloat16":800000000.0,"float16":800000000.0,"float32":50000000000.0,"float64":27000000000.0}},"levels":[{"bandwidth_bytes_per_s":1000000000.0,"count":2,"latency_s":0.0002,"name":"g"}],"name":"local:2","schema":"autosbp.cluster/1","source":"Order of magnitude of Gloo over loopback on a 2-core virtual machine with 4 ranks; calibrate for real numbers"},"collectives":[{"alpha_s":0.0001,"beta_s_per_byte":1e-09,"group_shape":[2],"kind":"all_reduce","max_relative_error":0.1,"median_relative_error":0.01,"points":[[1024,0.0001,1e-05,5],[1048576,0.001,0.0001,5]],"r2":0.99},{"alpha_s":0.0001,"beta_s_per_byte":1e-09,"group_shape":[2],"kind":"all_gather","max_relative_error":0.1,"median_relative_error":0.01,"points":[[1024,0.0001,1e-05,5],[1048576,0.001,0.0001,5]],"r2":0.99},{"alpha_s":0.0001,"beta_s_per_byte":1e-09,"group_shape":[2],"kind":"reduce_scatter","max_relative_error":0.1,"median_relative_error":0.01,"points":[[1024,0.0001,1e-05,5],[1048576,0.001,0.0001,5]],"r2":0.99},{"alpha_s":0.0001,"beta_s_per_byte":1e-09,"group_shape":[2],"kind":"all_to_all","max_relative_error":0.1,"median_relative_error":0.01,"points":[[1024,0.0001,1e-05,5],[1048576,0.001,0.0001,5]],"r2":0.99},{"alpha_s":0.0001,"beta_s_per_byte":1e-09,"group_shape":[2],"kind":"p2p","max_relative_error":0.1,"median_relative_error":0.01,"points":[[1024,0.0001,1e-05,5],[1048576,0.001,0.0001,5]],"r2":0.99}],"complete":true,"method":"relative","notes":[],"ops":{},"schema":"autosbp.calibration/1"}');
CREATE TABLE clusters (
	id VARCHAR(64) NOT NULL, 
	created_at DATETIME NOT NULL, 
	name VARCHAR(4096) NOT NULL, 
	cluster_hash VARCHAR(64) NOT NULL, 
	num_devices INTEGER NOT NULL, 
	document JSON NOT NULL, 
	CONSTRAINT pk_clusters PRIMARY KEY (id), 
	CONSTRAINT uq_clusters_cluster_hash UNIQUE (cluster_hash)
);
INSERT INTO "clusters" VALUES('clu-036ed24929f7ab07','2026-10-01 12:00:00.000000','local:2','036ed24929f7ab07',2,'{"device":{"efficiency":0.5,"kind":"cpu","memory_bandwidth_bytes_per_s":11000000000.0,"memory_bytes":4294967296,"name":"cpu-rank","op_overhead_s":1e-05,"peak_flops":{"bfloat16":800000000.0,"float16":800000000.0,"float32":50000000000.0,"float64":27000000000.0}},"levels":[{"bandwidth_bytes_per_s":1000000000.0,"count":2,"latency_s":0.0002,"name":"g"}],"name":"local:2","schema":"autosbp.cluster/1","source":"Order of magnitude of Gloo over loopback on a 2-core virtual machine with 4 ranks; calibrate for real numbers"}');
CREATE TABLE jobs (
	id VARCHAR(64) NOT NULL, 
	created_at DATETIME NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	payload JSON NOT NULL, 
	resource VARCHAR(128), 
	progress DOUBLE, 
	message TEXT NOT NULL, 
	figures JSON NOT NULL, 
	problem JSON, 
	result JSON, 
	cancel_requested BOOLEAN NOT NULL, 
	attempts INTEGER NOT NULL, 
	revision INTEGER NOT NULL, 
	started_at DATETIME, 
	finished_at DATETIME, 
	CONSTRAINT pk_jobs PRIMARY KEY (id)
);
INSERT INTO "jobs" VALUES('job-0000000000000001','2026-10-01 12:00:03.000000','search','succeeded','{"search_id":"sea-0000000000000001"}','/v1/searches/sea-0000000000000001',1.0,'succeeded','{}','null','{"search_id":"sea-0000000000000001","strategy_id":"plan-4180ab945cf3c9cb"}',0,1,4,'2026-10-01 12:00:03.000000','2026-10-01 12:00:04.000000');
INSERT INTO "jobs" VALUES('job-0000000000000002','2026-10-01 12:00:05.000000','trial','succeeded','{"trial_id":"tri-0000000000000001"}','/v1/trials/tri-0000000000000001',1.0,'succeeded','{}','null','{"trial_id":"tri-0000000000000001"}',0,1,4,'2026-10-01 12:00:05.000000','2026-10-01 12:00:06.000000');
INSERT INTO "jobs" VALUES('job-0000000000000003','2026-10-01 12:00:07.000000','capture','failed','{"hf_config":{"model_type":"abacus"},"image_size":null,"seq_len":null}',NULL,NULL,'failed','{}','{"detail":"config.model_type: ''abacus'' is not accepted","instance":"/v1/jobs/job-0000000000000003","status":422,"title":"A value is not accepted","type":"urn:autosbp:problem:invalid-input"}','null',0,1,4,'2026-10-01 12:00:07.000000','2026-10-01 12:00:08.000000');
CREATE TABLE models (
	id VARCHAR(64) NOT NULL, 
	created_at DATETIME NOT NULL, 
	name VARCHAR(4096) NOT NULL, 
	source VARCHAR(256) NOT NULL, 
	graph_hash VARCHAR(64) NOT NULL, 
	summary JSON NOT NULL, 
	document JSON NOT NULL, 
	CONSTRAINT pk_models PRIMARY KEY (id), 
	CONSTRAINT uq_models_graph_hash UNIQUE (graph_hash)
);
INSERT INTO "models" VALUES('mod-752f97d1361f720c','2026-10-01 12:00:01.000000','mlp','graph','752f97d1361f720c','{"graph_hash":"752f97d1361f720c","inputs":[{"dtype":"float32","name":"x","shape":["batch",16]},{"dtype":"int64","name":"labels","shape":["batch"]}],"name":"mlp","num_nodes":16,"num_parameters":1072,"parameter_bytes":4288,"symbols":{"batch":4}}','{"constants":[],"inputs":[{"dtype":"float32","name":"x","shape":["batch",16]},{"dtype":"int64","high":16,"name":"labels","shape":["batch"]}],"loss":{"ref":"div_0"},"name":"mlp","nodes":[{"args":[{"ref":"x"},{"ref":"up.weight"},{"ref":"up.bias"}],"name":"linear_0","op":"aten.linear.default","outputs":[{"dtype":"float32","shape":["batch",32]}]},{"args":[{"ref":"linear_0"}],"name":"gelu_0","op":"aten.gelu.default","outputs":[{"dtype":"float32","shape":["batch",32]}]},{"args":[{"ref":"gelu_0"},{"ref":"down.weight"},{"ref":"down.bias"}],"name":"linear_1","op":"aten.linear.default","outputs":[{"dtype":"float32","shape":["batch",16]}]},{"args":[{"ref":"linear_1"},1],"name":"log_softmax_0","op":"aten.log_softmax.int","outputs":[{"dtype":"float32","shape":["batch",16]}]},{"args":[{"ref":"labels"},-100],"name":"eq_0","op":"aten.eq.Scalar","outputs":[{"dtype":"bool","shape":["batch"]}]},{"args":[{"ref":"labels"},{"ref":"eq_0"},0],"name":"masked_fill_0","op":"aten.masked_fill.Scalar","outputs":[{"dtype":"int64","shape":["batch"]}]},{"args":[{"ref":"masked_fill_0"},[{"sym":"batch"},1]],"name":"reshape_0","op":"aten.reshape.default","outputs":[{"dtype":"int64","shape":["batch",1]}]},{"args":[{"ref":"log_softmax_0"},1,{"ref":"reshape_0"}],"name":"gather_0","op":"aten.gather.default","outputs":[{"dtype":"float32","shape":["batch",1]}]},{"args":[{"ref":"gather_0"},[{"sym":"batch"}]],"name":"reshape_1","op":"aten.reshape.default","outputs":[{"dtype":"float32","shape":["batch"]}]},{"args":[{"ref":"reshape_1"},{"ref":"eq_0"},0],"name":"masked_fill_1","op":"aten.masked_fill.Scalar","outputs":[{"dtype":"float32","shape":["batch"]}]},{"args":[{"ref":"masked_fill_1"}],"name":"sum_0","op":"aten.sum.default","outputs":[{"dtype":"float32","shape":[]}]},{"args":[{"ref":"sum_0"}],"name":"neg_0","op":"aten.neg.default","outputs":[{"dtype":"float32","shape":[]}]},{"args":[{"ref":"labels"},-100],"name":"ne_0","op":"aten.ne.Scalar","outputs":[{"dtype":"bool","shape":["batch"]}]},{"args":[{"ref":"ne_0"},{"dtype":"float32"}],"name":"to_0","op":"aten.to.dtype","outputs":[{"dtype":"float32","shape":["batch"]}]},{"args":[{"ref":"to_0"}],"name":"sum_1","op":"aten.sum.default","outputs":[{"dtype":"float32","shape":[]}]},{"args":[{"ref":"neg_0"},{"ref":"sum_1"}],"name":"div_0","op":"aten.div.Tensor","outputs":[{"dtype":"float32","shape":[]}]}],"parameters":[{"dtype":"float32","name":"up.weight","shape":[32,16]},{"dtype":"float32","name":"up.bias","shape":[32]},{"dtype":"float32","name":"down.weight","shape":[16,32]},{"dtype":"float32","name":"down.bias","shape":[16]}],"provenance":{},"schema":"autosbp.graph/1","symbols":{"batch":4}}');
CREATE TABLE searches (
	id VARCHAR(64) NOT NULL, 
	created_at DATETIME NOT NULL, 
	model_id VARCHAR(64) NOT NULL, 
	cluster_id VARCHAR(64) NOT NULL, 
	calibration_id VARCHAR(64), 
	job_id VARCHAR(64) NOT NULL, 
	strategy_id VARCHAR(64), 
	options JSON NOT NULL, 
	CONSTRAINT pk_searches PRIMARY KEY (id), 
	CONSTRAINT fk_searches_model_id FOREIGN KEY(model_id) REFERENCES models (id), 
	CONSTRAINT fk_searches_cluster_id FOREIGN KEY(cluster_id) REFERENCES clusters (id), 
	CONSTRAINT fk_searches_calibration_id FOREIGN KEY(calibration_id) REFERENCES calibrations (id), 
	CONSTRAINT fk_searches_job_id FOREIGN KEY(job_id) REFERENCES jobs (id), 
	CONSTRAINT fk_searches_strategy_id FOREIGN KEY(strategy_id) REFERENCES strategies (id)
);
INSERT INTO "searches" VALUES('sea-0000000000000001','2026-10-01 12:00:03.000000','mod-752f97d1361f720c','clu-036ed24929f7ab07','cal-ab1fc79605bc2172','job-0000000000000001','plan-4180ab945cf3c9cb','{"baselines":["data_parallel"],"gap_tolerance":0.002,"global_batch":8,"memory_limit_bytes":null,"micro_batch":null,"optimizer":"adamw","searcher":"auto","seed":0,"time_limit_s":5.0}');
CREATE TABLE strategies (
	id VARCHAR(64) NOT NULL, 
	created_at DATETIME NOT NULL, 
	model_id VARCHAR(64) NOT NULL, 
	cluster_id VARCHAR(64) NOT NULL, 
	calibration_id VARCHAR(64), 
	searcher VARCHAR(64) NOT NULL, 
	step_time_s DOUBLE NOT NULL, 
	comm_bytes_per_device BIGINT NOT NULL, 
	memory_bytes_per_device BIGINT NOT NULL, 
	"plan" JSON NOT NULL, 
	CONSTRAINT pk_strategies PRIMARY KEY (id), 
	CONSTRAINT fk_strategies_model_id FOREIGN KEY(model_id) REFERENCES models (id), 
	CONSTRAINT fk_strategies_cluster_id FOREIGN KEY(cluster_id) REFERENCES clusters (id), 
	CONSTRAINT fk_strategies_calibration_id FOREIGN KEY(calibration_id) REFERENCES calibrations (id)
);
INSERT INTO "strategies" VALUES('plan-4180ab945cf3c9cb','2026-10-01 12:00:04.000000','mod-752f97d1361f720c','clu-036ed24929f7ab07','cal-ab1fc79605bc2172','auto',2.2577454545454547362e-04,0,19140,'{"baseline_strategies":{"data_parallel":{"global_batch":8,"mesh":{"axes":[["g0",2,0]],"level_counts":[2]},"micro_batch":8,"optimizer":"adamw","parameters":{"down.bias":"B","down.weight":"B","up.bias":"B","up.weight":"B"},"paths":[{"bytes":4,"path":["P","I"],"shape":[]}],"signatures":{"div_0":"P B -> P","gather_0":"S0 S0 -> S0","gelu_0":"S0 -> S0","linear_0":"S0 B B -> S0","linear_1":"S0 B B -> S0","log_softmax_0":"S0 -> S0","masked_fill_1":"S0 S0 -> S0","neg_0":"P -> P","reshape_1":"S0 -> S0","sum_0":"S0 -> P"}}},"baselines":{"data_parallel":{"breakdown":{"bubble_s":0.0,"compute_s":0.00019211263636363638,"exposed_comm_s":0.000404292,"optimizer_s":4.272872727272727e-05},"comm_bytes_per_device":4292,"feasible":true,"memory_breakdown":{"activations":0,"data":576,"gradients":6400,"optimizer":8576,"parameters":4288,"temporaries":2692},"memory_bytes_per_device":22532,"reason":"","simulated_step_time_s":0.0006391333636363635,"step_time_s":0.0006391333636363637}},"breakdown":{"bubble_s":0.0,"compute_s":0.0001830458181818182,"exposed_comm_s":0.0,"optimizer_s":4.272872727272727e-05},"cluster":{"device":{"efficiency":0.5,"kind":"cpu","memory_bandwidth_bytes_per_s":11000000000.0,"memory_bytes":4294967296,"name":"cpu-rank","op_overhead_s":1e-05,"peak_flops":{"bfloat16":800000000.0,"float16":800000000.0,"float32":50000000000.0,"float64":27000000000.0}},"levels":[{"bandwidth_bytes_per_s":1000000000.0,"count":2,"latency_s":0.0002,"name":"g"}],"name":"local:2","schema":"autosbp.cluster/1","source":"Order of magnitude of Gloo over loopback on a 2-core virtual machine with 4 ranks; calibrate for real numbers"},"comm_bytes_per_device":0,"evaluations":242,"fewer_devices":{"num_devices":1,"step_time_s":0.00022577454545454547},"gap":0.0,"lower_bound_s":0.00022577454545454547,"memory_breakdown":{"activations":2048,"data":576,"gradients":0,"optimizer":8576,"parameters":4288,"temporaries":3652},"memory_bytes_per_device":19140,"memory_limit_bytes":4294967296,"model":"mlp","options":{"baselines":["data_parallel"],"gap_tolerance":0.002,"global_batch":8,"memory_limit_bytes":null,"micro_batch":null,"optimizer":"adamw","searcher":"auto","seed":0,"time_limit_s":5.0},"plan_id":"plan-4180ab945cf3c9cb","provenance":{"calibration_id":"cal-ab1fc79605bc2172","cluster_hash":"036ed24929f7ab07","graph_hash":"752f97d1361f720c","searcher":"auto","seed":0,"version":"0.1.0"},"schema":"autosbp.plan/1","searcher":"auto","simulated_step_time_s":0.00022577454545454547,"step_time_s":0.00022577454545454547,"strategy":{"global_batch":8,"mesh":{"axes":[["g0",2,0]],"level_counts":[2]},"micro_batch":8,"optimizer":"adamw","parameters":{"down.bias":"I","down.weight":"I","up.bias":"I","up.weight":"I"},"paths":[],"signatures":{"div_0":"I B -> I","gather_0":"I B -> I","gelu_0":"I -> I","linear_0":"B I I -> I","linear_1":"I I I -> I","log_softmax_0":"I -> I","masked_fill_1":"I B -> I","neg_0":"I -> I","reshape_1":"I -> I","sum_0":"I -> I"}},"warnings":[]}');
CREATE TABLE trials (
	id VARCHAR(64) NOT NULL, 
	created_at DATETIME NOT NULL, 
	strategy_id VARCHAR(64) NOT NULL, 
	job_id VARCHAR(64) NOT NULL, 
	baseline VARCHAR(64), 
	options JSON NOT NULL, 
	predicted JSON NOT NULL, 
	measured_step_time_s DOUBLE, 
	relative_error DOUBLE, 
	result JSON, 
	CONSTRAINT pk_trials PRIMARY KEY (id), 
	CONSTRAINT fk_trials_strategy_id FOREIGN KEY(strategy_id) REFERENCES strategies (id), 
	CONSTRAINT fk_trials_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
INSERT INTO "trials" VALUES('tri-0000000000000001','2026-10-01 12:00:05.000000','plan-4180ab945cf3c9cb','job-0000000000000002',NULL,'{"seed":0,"steps":3,"warmup":1}','{"step_time_s":0.00022577454545454547}',0.0125,0.5,'{"collectives_match":true,"plan_id":"plan-4180ab945cf3c9cb","step_time_s":{"median":0.0125}}');
CREATE INDEX ix_clusters_created_at ON clusters (created_at);
CREATE INDEX ix_jobs_created_at ON jobs (created_at);
CREATE INDEX ix_jobs_state_created_at ON jobs (state, created_at);
CREATE INDEX ix_models_created_at ON models (created_at);
CREATE INDEX ix_calibrations_created_at ON calibrations (created_at);
CREATE INDEX ix_calibrations_cluster_id ON calibrations (cluster_id);
CREATE INDEX ix_strategies_created_at ON strategies (created_at);
CREATE INDEX ix_strategies_model_id ON strategies (model_id);
CREATE INDEX ix_strategies_cluster_id ON strategies (cluster_id);
CREATE INDEX ix_searches_created_at ON searches (created_at);
CREATE INDEX ix_searches_model_id ON searches (model_id);
CREATE INDEX ix_searches_cluster_id ON searches (cluster_id);
CREATE INDEX ix_searches_strategy_id ON searches (strategy_id);
CREATE INDEX ix_trials_created_at ON trials (created_at);
CREATE INDEX ix_trials_strategy_id ON trials (strategy_id);
COMMIT;
